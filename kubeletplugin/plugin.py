"""A kubelet plugin from its lock to its last answer.

::

    plugin = KubeletPlugin("gpu.example.com", paths, driver, claims, publisher)
    await plugin.acquire()      # a second instance waits here
    ...                         # now the node is ours: load state, recover
    await plugin.serve()
    ...
    await plugin.stop()
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import Protocol

from kubeletplugin.claims import ClaimSource
from kubeletplugin.contract import ClaimRef, DeviceHealth, Driver
from kubeletplugin.handover import Handover
from kubeletplugin.health import HealthBoard
from kubeletplugin.lock import InstanceLock
from kubeletplugin.paths import PluginPaths
from kubeletplugin.proto import registration_pb2_grpc
from kubeletplugin.registration import Registration, RegistrationServicer
from kubeletplugin.service import DraService, Observer, Outcome
from kubeletplugin.servicers import add_dra_services
from kubeletplugin.sockets import SocketServer
from kubeletplugin.work import ClaimWork

log = logging.getLogger(__name__)

WATCHDOG_S = 1.0  # the kubelet reconciles its registry every second too
STOP_GRACE_S = 20.0  # below the 30 s that a pod has by default between SIGTERM and SIGKILL


class Phase(Enum):
    NEW = "starting"
    STANDBY = "standing by: another instance holds the sockets"
    HOLDING = "holding the sockets, not serving yet"
    SERVING = "serving"
    STOPPED = "stopped"


class Publishing(Protocol):
    """The part of ``Publisher`` that registration drives."""

    def set_registered(self, registered: bool) -> None: ...
    def resync(self) -> None: ...


class KubeletPlugin:
    """Serves one driver to one kubelet."""

    def __init__(
        self,
        name: str,
        paths: PluginPaths,
        driver: Driver,
        claims: ClaimSource,
        publisher: Publishing,
        observer: Observer | None = None,
    ) -> None:
        self.name = name
        self.phase = Phase.NEW
        self.failed = asyncio.Event()  # the sockets are lost to another instance: exit
        self.registration = Registration(
            on_registered=self._on_registered,
            on_refused=self._on_refused,
        )
        self._paths = paths
        self._publisher = publisher
        self._lock = InstanceLock(paths.locks)
        self._handover = Handover(paths.plugin_dir)
        self._work: ClaimWork[Outcome] = ClaimWork()
        self._board = HealthBoard()
        self._service = DraService(driver, claims, self._work, observer)
        self._dra = SocketServer(
            paths.dra_socket,
            lambda server: add_dra_services(server, self._service, self._board),
        )
        servicer = RegistrationServicer(name, paths.dra_socket, self.registration)
        self._registrar = SocketServer(
            paths.registration_socket,
            lambda server: registration_pb2_grpc.add_RegistrationServicer_to_server(
                servicer, server
            ),
        )
        self._watchdog: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether a readiness probe should pass: registered, or standing by on purpose (a standby
        that is not Ready would deadlock a roll-out with ``maxSurge: 1``)."""
        if self.phase is Phase.STANDBY:
            return True
        return self.phase is Phase.SERVING and self.registration.registered.is_set()

    async def acquire(self) -> None:
        """Make the folders, then wait until no other instance uses them."""
        for folder, mode in ((self._paths.plugin_dir, 0o700), (self._paths.registry_dir, 0o750)):
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
        if not self._handover.try_take_turn():
            self._stand_by()
            await self._handover.take_turn()
        if not self._lock.try_acquire():
            self._stand_by()
            if self._paths.own_names:  # the one before is stopping: be there before it goes
                await self._open_sockets()
            await self._lock.acquire()
        self.phase = Phase.HOLDING

    def _stand_by(self) -> None:
        if self.phase is not Phase.STANDBY:
            log.info("standing by: another instance of %s holds %s", self.name, self._lock_names)
        self.phase = Phase.STANDBY

    @property
    def _lock_names(self) -> str:
        return " and ".join(str(path) for path in self._paths.locks)

    async def serve(self) -> None:
        """Serve claims, then announce it: the kubelet calls as soon as it has found the socket.

        It looks for sockets once a second. Where it took an earlier instance with these folders
        nothing waits for that: what is published is what it will serve.
        """
        self._service.opened.set()
        await self._open_sockets()
        self.phase = Phase.SERVING
        if self._handover.known and not self.registration.error:
            self._publisher.set_registered(True)
        self._watchdog = asyncio.create_task(self._watch(), name="socket watchdog")

    async def _open_sockets(self) -> None:
        """Calls that come before ``serve`` wait for it."""
        for server in (self._dra, self._registrar):
            if not server.running:
                await server.start()

    async def prepare_one(self, ref: ClaimRef) -> str:
        """Prepare on the driver's own account, in line with the kubelet's calls; "" or why not."""
        return (await self._service.prepare([ref]))[ref.uid].error

    async def unprepare_one(self, ref: ClaimRef) -> str:
        """Unprepare likewise: what the kubelet will never ask for (a claim it has forgotten)."""
        return (await self._service.unprepare([ref]))[ref.uid].error

    async def idle(self, timeout_s: float) -> bool:
        """Wait until no claim is worked on: for what is less urgent. False: some still are."""
        return await self._work.drain(timeout_s)

    def set_health(self, devices: Iterable[DeviceHealth]) -> None:
        """The complete list of devices and how they are."""
        self._board.set(devices)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> bool:
        """Take no new calls, finish the work, free the sockets.

        Another instance that stands by is registered first, so that calls find it meanwhile. The
        registration socket goes after the calls: when it vanishes, the kubelet closes its
        connection, and with it every call that is not answered yet.

        False: work was still running after ``grace_s``; the driver's records must cover it.
        """
        if self._watchdog is not None:
            self._watchdog.cancel()
            with suppress(asyncio.CancelledError):
                await self._watchdog
        self._publisher.set_registered(False)
        if self.phase is Phase.SERVING and self._paths.own_names:
            await self._handover.give()
        self._board.close()
        await self._dra.stop(grace_s)
        await self._registrar.stop(0)
        drained = await self._work.drain(grace_s)
        self._handover.release()
        self._lock.release()
        self.phase = Phase.STOPPED
        return drained

    def _on_registered(self) -> None:
        self._handover.arrived()
        self._publisher.set_registered(True)
        self._publisher.resync()

    def _on_refused(self) -> None:
        self._handover.refused()
        self._publisher.set_registered(False)

    async def _watch(self) -> None:
        while not self.failed.is_set():
            await asyncio.sleep(WATCHDOG_S)
            try:
                await self.repair()
            except OSError as error:
                log.warning("sockets of %s not restored yet: %s", self.name, error)

    async def repair(self) -> None:
        """Restore sockets and locks that somebody deleted (a wiped plugin registry)."""
        if not (self._lock.intact() and self._handover.intact()):
            for folder in (self._paths.plugin_dir, self._paths.registry_dir):
                folder.mkdir(parents=True, exist_ok=True)
            if not (self._handover.retake() and self._lock.retake()):
                log.error(
                    "another instance of %s took %s while the folder was wiped: stopping",
                    self.name,
                    self._lock_names,
                )
                self.failed.set()
                return
        if await self._dra.ensure():
            log.warning("socket %s was gone and is served again", self._dra.path)
        if await self._registrar.ensure(0):
            log.warning("socket %s was gone and is served again", self._registrar.path)
            self.registration.lost()
