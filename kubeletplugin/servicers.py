"""The kubelet's gRPC services: messages in and out, nothing else."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio

from kubeletplugin.contract import ClaimRef, PreparedDevice
from kubeletplugin.health import HealthBoard
from kubeletplugin.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)
from kubeletplugin.service import DraService

# Names as GetInfo announces them; the kubelet takes the first it supports.
SUPPORTED = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)

Context = grpc.aio.ServicerContext[Any, Any]


def _refs(claims: Sequence[Any]) -> list[ClaimRef]:
    return [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]


def _device(pb: Any, device: PreparedDevice) -> Any:
    message = pb.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_device_ids,
    )
    if device.share_id is not None and pb is dra_v1_pb2:
        message.share_id = device.share_id
    return message


class _Dra:
    """Both versions have the same messages, but for ``share_id``."""

    pb: Any

    def __init__(self, service: DraService) -> None:
        self._service = service

    async def NodePrepareResources(self, request: Any, context: Context) -> Any:  # noqa: N802
        left_s = context.time_remaining()
        outcomes = await self._service.answer("prepare", _refs(request.claims), left_s)
        answer = self.pb.NodePrepareResourcesResponse()
        for uid, outcome in outcomes.items():
            entry = answer.claims[uid]
            entry.error = outcome.error
            entry.devices.extend(_device(self.pb, device) for device in outcome.devices)
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Context) -> Any:  # noqa: N802
        left_s = context.time_remaining()
        outcomes = await self._service.answer("unprepare", _refs(request.claims), left_s)
        answer = self.pb.NodeUnprepareResourcesResponse()
        for uid, outcome in outcomes.items():
            answer.claims[uid].error = outcome.error
        return answer


class DraV1(_Dra, dra_v1_pb2_grpc.DRAPluginServicer):
    pb = dra_v1_pb2


class DraV1beta1(_Dra, dra_v1beta1_pb2_grpc.DRAPluginServicer):
    pb = dra_v1beta1_pb2


class _Health:
    pb: Any

    def __init__(self, board: HealthBoard) -> None:
        self._board = board

    async def NodeWatchResources(  # noqa: N802
        self, request: Any, context: Context
    ) -> AsyncIterator[Any]:
        async for devices in self._board.watch():
            now = int(time.time())
            yield self.pb.NodeWatchResourcesResponse(
                devices=[
                    self.pb.DeviceHealth(
                        device=self.pb.DeviceIdentifier(
                            pool_name=device.pool, device_name=device.device
                        ),
                        health=self._status(device.healthy),
                        last_updated_time=now,
                        message=device.message,
                    )
                    for device in devices
                ]
            )

    def _status(self, healthy: bool | None) -> Any:
        if healthy is None:
            return self.pb.UNKNOWN
        return self.pb.HEALTHY if healthy else self.pb.UNHEALTHY


class HealthV1(_Health, health_v1_pb2_grpc.DRAResourceHealthServicer):
    pb = health_v1_pb2


class HealthV1alpha1(_Health, health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    pb = health_v1alpha1_pb2


def add_dra_services(server: grpc.aio.Server, service: DraService, board: HealthBoard) -> None:
    """Everything the kubelet asks on the DRA socket."""
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(DraV1(service), server)
    dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(DraV1beta1(service), server)
    health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthV1(board), server)
    health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthV1alpha1(board), server)
