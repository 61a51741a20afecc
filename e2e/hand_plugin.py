"""A kubelet plugin of forty lines: one CDI device for every claim, to try the cluster itself."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any

import grpc

from kubeletplugin.proto import dra_v1_pb2 as dra
from kubeletplugin.proto import dra_v1_pb2_grpc as dra_grpc
from kubeletplugin.proto import registration_pb2 as registration
from kubeletplugin.proto import registration_pb2_grpc as registration_grpc


class HandPlugin(dra_grpc.DRAPluginServicer, registration_grpc.RegistrationServicer):
    """Serves registration and DRA v1 below a kubelet's folder while it is entered."""

    def __init__(self, kubelet_root: Path, driver: str, cdi_device: str) -> None:
        self._driver = driver
        self._cdi_device = cdi_device
        self._socket = kubelet_root / "plugins" / driver / "dra.sock"
        self._registrar = kubelet_root / "plugins_registry" / f"{driver}-reg.sock"
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._answered = Event()
        self.prepared: set[str] = set()

    def __enter__(self) -> "HandPlugin":
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        dra_grpc.add_DRAPluginServicer_to_server(self, self._server)
        registration_grpc.add_RegistrationServicer_to_server(self, self._server)
        for path in (self._socket, self._registrar):
            self._server.add_insecure_port(f"unix://{path}")
        self._server.start()
        if not self._answered.wait(30):
            raise TimeoutError(f"the kubelet did not register {self._driver} within 30 s")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop(grace=1).wait()
        for path in (self._registrar, self._socket):
            path.unlink(missing_ok=True)

    def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:  # noqa: N802
        """Name, socket and services, for the kubelet's plugin watcher."""
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._socket),
            supported_versions=["v1.DRAPlugin"],
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: Any, context: Any
    ) -> registration.RegistrationStatusResponse:
        """The kubelet says whether it took the plugin.

        Entering waits for it: a pod whose plugin is not registered is tried again by the
        kubelet only with its next full sync, 60 to 90 s later.
        """
        self._answered.set()
        return registration.RegistrationStatusResponse()

    def NodePrepareResources(  # noqa: N802
        self, request: dra.NodePrepareResourcesRequest, context: Any
    ) -> dra.NodePrepareResourcesResponse:
        """Every claim gets the one CDI device."""
        reply = dra.NodePrepareResourcesResponse()
        for claim in request.claims:
            self.prepared.add(claim.uid)
            reply.claims[claim.uid].devices.add(
                pool_name="hand", device_name="one", cdi_device_ids=[self._cdi_device]
            )
        return reply

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra.NodeUnprepareResourcesRequest, context: Any
    ) -> dra.NodeUnprepareResourcesResponse:
        """Forget the claims."""
        reply = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self.prepared.discard(claim.uid)
            reply.claims[claim.uid].SetInParent()
        return reply
