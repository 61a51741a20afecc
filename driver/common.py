"""What every container of the node gets, looked at again for each claim."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from driver.errors import DriverError, HardwareError
from driver.hw.libraries import DriverFiles
from driver.model.gpu import DeviceNode
from driver.model.ids import GpuUuid
from driver.model.view import Mount
from driver.plan.cdi import common_edits

log = logging.getLogger(__name__)

_FRESH_S = 0.5
_AGAIN_S = 0.05  # a hundred claims at once need one look
_MOST_CARDS = 16  # of more, asking NVML for each would take longer than the GET


class Hardware(Protocol):
    """The part of ``hw.card.Cards`` that is needed. All raise HardwareError."""

    def nodes(self, gpu: GpuUuid) -> tuple[DeviceNode, ...]: ...
    def files(self) -> DriverFiles: ...
    def toolkit_edits(self, files: DriverFiles) -> Mapping[str, Any] | None: ...
    def control_nodes(self) -> tuple[DeviceNode, ...]: ...


@dataclass(frozen=True, slots=True)
class Common:
    """The containerEdits that all containers get, the same object until something changes, and
    what was found out of the cards' own device nodes."""

    edits: Mapping[str, Any]
    nodes: Mapping[GpuUuid, tuple[DeviceNode, ...]]


_Source: TypeAlias = (
    "tuple[DriverFiles, Mapping[str, Any] | None, tuple[DeviceNode, ...]]"  # what edits come from
)


class CommonParts:
    """May be looked at ahead, while the API server is asked for the claim: two dozen files are
    looked up and NVML is asked, which a pod's start need not wait for. Any thread may call."""

    def __init__(self, hardware: Hardware, clock: Callable[[], float] = time.monotonic) -> None:
        self._hardware = hardware
        self._clock = clock
        self._ahead: tuple[float, Common] | None = None
        self._made: tuple[_Source, Mapping[str, Any]] | None = None
        self._made_by_toolkit: tuple[DriverFiles, Mapping[str, Any]] | None = None
        self._complaint = ""  # of the toolkit, as last logged

    def look_ahead(self, gpus: Collection[GpuUuid]) -> None:
        """Keep what is there for the next ``take``. A failure is left for that one to meet.
        Blocks, but for what was looked at moments ago."""
        if self._younger(_AGAIN_S):
            return
        try:
            few = gpus if len(gpus) <= _MOST_CARDS else ()
            nodes = {gpu: self._hardware.nodes(gpu) for gpu in few}
            self._ahead = (self._clock(), replace(self._look(), nodes=nodes))
        except DriverError as error:
            log.debug("the common parts will be looked at again: %s", error)

    @property
    def ahead(self) -> Common | None:
        """What was looked at during the last half second. Does not block."""
        return self._younger(_FRESH_S)

    def _younger(self, seconds: float) -> Common | None:
        at, common = self._ahead or (0.0, None)
        return common if self._clock() - at < seconds else None

    def take(self) -> Common:
        """As it is now, or was during the last half second. Blocks unless looked ahead.

        Raises:
            HardwareError: a device node or the driver's files are missing.
        """
        return self.ahead or self._look()

    def _look(self) -> Common:
        files = self._hardware.files()
        source = (files, self._toolkit(files), self._hardware.control_nodes())
        made = self._made
        if made is None or made[0] != source:
            _, toolkit, control = source
            made = source, common_edits(control, mounts_of(files), toolkit)
            self._made = made
        return Common(made[1], {})

    def _toolkit(self, files: DriverFiles) -> Mapping[str, Any] | None:
        """Where it fails, what it made for these files before: claims that are prepared keep it.
        Else the files are mounted without its hooks, as on a node without it."""
        try:
            found = self._hardware.toolkit_edits(files)
        except HardwareError as error:
            made = self._made_by_toolkit
            found = made[1] if made is not None and made[0] == files else None
            get = (
                "the driver's files without its hooks" if found is None else "what it made before"
            )
            self._complain(f"the NVIDIA Container Toolkit fails, containers get {get}: {error}")
            return found
        self._complain("")
        self._made_by_toolkit = None if found is None else (files, found)
        return found

    def _complain(self, text: str) -> None:
        if text and text != self._complaint:
            log.warning("%s", text)
        self._complaint = text


def mounts_of(files: DriverFiles) -> tuple[Mount, ...]:
    """The driver's files, and the names that its links give them.

    Links are mounted as files of their own: without the toolkit's hook nobody makes a link inside
    the container, and programs look for ``libcuda.so.1``.
    """
    mounts = [Mount(host, container) for host, container in files.mounts]
    by_name = {mount.container_path.rsplit("/", 1)[1]: mount.host_path for mount in mounts}
    for target, link in files.symlinks:
        host = by_name.get(target.rsplit("/", 1)[-1])
        if host is not None:
            mounts.append(Mount(host, link))
            by_name.setdefault(link.rsplit("/", 1)[1], host)
    return tuple(mounts)
