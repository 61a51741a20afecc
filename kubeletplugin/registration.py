"""How the kubelet finds the plugin: the service on the registration socket."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from kubeletplugin.proto import registration_pb2 as pb
from kubeletplugin.proto import registration_pb2_grpc
from kubeletplugin.servicers import SUPPORTED

log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"


@dataclass
class Registration:
    """What the kubelet said last. ``on_registered`` is called at each successful registration:
    also after a restart of the kubelet, which deletes the node's ResourceSlices at its start.
    ``on_refused`` where it does not take the plugin."""

    on_registered: Callable[[], None] = lambda: None
    on_refused: Callable[[], None] = lambda: None
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    error: str = ""

    def accept(self) -> None:
        self.error = ""
        self.registered.set()
        self.on_registered()

    def refuse(self, error: str) -> None:
        self.error = error or "the kubelet gave no reason"
        self.registered.clear()
        self.on_refused()

    def lost(self) -> None:
        """The registration socket had to be made anew: the kubelet has dropped the plugin."""
        self.registered.clear()


class RegistrationServicer(registration_pb2_grpc.RegistrationServicer):
    def __init__(self, driver: str, endpoint: Path, state: Registration) -> None:
        self._info = pb.PluginInfo(
            type=PLUGIN_TYPE, name=driver, endpoint=str(endpoint), supported_versions=SUPPORTED
        )
        self._state = state

    async def GetInfo(  # noqa: N802
        self, request: pb.InfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PluginInfo:
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: pb.RegistrationStatus, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("registered with the kubelet as %s", self._info.name)
            self._state.accept()
            return pb.RegistrationStatusResponse()
        self._state.refuse(request.error)
        log.error("the kubelet refused the registration: %s", self._state.error)
        # As the Go library does: the failed call shows up in the kubelet's log too.
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"registration of {self._info.name} was refused: {self._state.error}",
        )
        raise AssertionError("abort raises")  # pragma: no cover
