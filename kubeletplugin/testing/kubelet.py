"""The part of the kubelet that talks to DRA plugins: finds the registration socket, registers,
calls prepare and unprepare with the kubelet's own deadlines.

Checked against the real kubelet's behaviour by the e2e suite, which runs the same plugin under it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc.aio

from kubeletplugin.contract import ClaimRef, PreparedDevice
from kubeletplugin.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)

# kubernetes/pkg/kubelet/pluginmanager and cm/dra: GetInfo 1 s, status 5 s, DRA calls 45 s.
GET_INFO_S, NOTIFY_S, DRA_S = 1.0, 5.0, 45.0

_DRA: dict[str, tuple[Any, Any]] = {
    "v1": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
_HEALTH: dict[str, tuple[Any, Any]] = {
    "v1": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A plugin's answer for one claim."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""

    @property
    def cdi_device_ids(self) -> tuple[str, ...]:
        return tuple(i for device in self.devices for i in device.cdi_device_ids)


def channel(socket: Path) -> grpc.aio.Channel:
    """A channel to a Unix socket. The authority is fixed: C-core would send the encoded path."""
    return grpc.aio.insecure_channel(
        f"unix:{socket}", options=(("grpc.default_authority", "localhost"),)
    )


@dataclass
class PluginClient:
    """A registered plugin, as the kubelet holds it."""

    name: str
    endpoint: Path
    supported: tuple[str, ...]
    version: str = "v1"
    _channel: grpc.aio.Channel | None = field(default=None, repr=False)

    async def __aenter__(self) -> "PluginClient":
        self._channel = channel(self.endpoint)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._channel is not None:
            await self._channel.close()

    def _stub(self) -> tuple[Any, Any]:
        pb, pb_grpc = _DRA[self.version]
        return pb, pb_grpc.DRAPluginStub(self._channel)

    async def prepare(
        self, refs: Iterable[ClaimRef], timeout_s: float = DRA_S
    ) -> dict[str, Answer]:
        """NodePrepareResources for all ``refs`` in one call; the answers by claim UID."""
        pb, stub = self._stub()
        request = pb.NodePrepareResourcesRequest(claims=_claims(pb, refs))
        response = await stub.NodePrepareResources(request, timeout=timeout_s)
        return {
            uid: Answer(tuple(map(_prepared, answer.devices)), answer.error)
            for uid, answer in response.claims.items()
        }

    async def unprepare(
        self, refs: Iterable[ClaimRef], timeout_s: float = DRA_S
    ) -> dict[str, str]:
        """NodeUnprepareResources; the error text ("" for success) by claim UID."""
        pb, stub = self._stub()
        request = pb.NodeUnprepareResourcesRequest(claims=_claims(pb, refs))
        response = await stub.NodeUnprepareResources(request, timeout=timeout_s)
        return {uid: answer.error for uid, answer in response.claims.items()}

    async def health(self, version: str = "v1") -> AsyncIterator[dict[tuple[str, str], str]]:
        """The health stream: (pool, device) → UNKNOWN, HEALTHY or UNHEALTHY, a list at a time."""
        pb, pb_grpc = _HEALTH[version]
        stub = pb_grpc.DRAResourceHealthStub(self._channel)
        async for response in stub.NodeWatchResources(pb.NodeWatchResourcesRequest()):
            yield {
                (item.device.pool_name, item.device.device_name): pb.HealthStatus.Name(item.health)
                for item in response.devices
            }


def _claims(pb: Any, refs: Iterable[ClaimRef]) -> Sequence[Any]:
    return [pb.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]


def _prepared(device: Any) -> PreparedDevice:
    with_share = hasattr(device, "share_id") and device.HasField("share_id")
    return PreparedDevice(
        requests=tuple(device.request_names),
        pool=device.pool_name,
        device=device.device_name,
        cdi_device_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id if with_share else None,
    )


async def register(
    socket: Path, *, refuse: str | None = None, version: str = "v1"
) -> PluginClient:
    """GetInfo and NotifyRegistrationStatus on one registration socket.

    ``refuse`` plays a kubelet that does not accept the plugin, with that reason.
    """
    async with channel(socket) as connection:
        stub = registration_pb2_grpc.RegistrationStub(connection)
        info = await stub.GetInfo(registration_pb2.InfoRequest(), timeout=GET_INFO_S)
        status = registration_pb2.RegistrationStatus(
            plugin_registered=refuse is None, error=refuse or ""
        )
        with suppress(*([grpc.aio.AioRpcError] if refuse is not None else [])):
            await stub.NotifyRegistrationStatus(status, timeout=NOTIFY_S)
    return PluginClient(info.name, Path(info.endpoint), tuple(info.supported_versions), version)


def _sockets(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sock"))


async def find_plugin(
    registry_dir: Path, driver: str, *, timeout_s: float = 30.0, version: str = "v1"
) -> PluginClient:
    """Wait for a socket of ``driver`` in the registry folder and register it.

    Raises:
        TimeoutError: no such plugin registered in time; the text names folder and driver.
    """
    last = "no registration socket appeared"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                for socket in _sockets(registry_dir):
                    try:
                        plugin = await register(socket, version=version)
                    except grpc.aio.AioRpcError as error:
                        last = f"{socket}: {error.details()}"
                        continue
                    if plugin.name == driver:
                        return plugin
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise TimeoutError(
            f"plugin {driver} did not register in {registry_dir} within {timeout_s:g} s: {last}"
        ) from None
