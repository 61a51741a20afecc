"""What the processes of a pod may have of a card's memory together: NVML's limits by cgroup.

R615 and newer, cgroup v2, never in MIG mode (NVML API reference, ``nvmlDeviceSetMemoryLimits_v1``;
"MPS v3 Memory Partitioning" at docs.nvidia.com/deploy/mps). Documented, not run: no node with such
a driver was at hand, so everything is read back.
"""

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from driver.errors import HardwareError
from driver.hw.cgroups import PodCgroups
from driver.hw.codes import Return
from driver.hw.nvml import Nvml, ask, struct
from driver.model.ids import GpuUuid
from driver.model.steps import LimitPod

_UNLIMITED = (1 << 64) - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX
_PAGE = 2 << 20  # a card's largest page: so much less than asked may hold, never more
_UNSET = {Return.NOT_FOUND, Return.NOT_SUPPORTED}  # the getter's, where no limit is set
_NEVER_SET = _UNSET | {Return.FUNCTION_NOT_FOUND}  # by this driver: an older one was put back
_CANNOT = _UNSET | {Return.FUNCTION_NOT_FOUND, Return.NO_PERMISSION}
_SET, _GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


class PodLimits:
    """One limit for each card and pod. All calls block.

    Soft and hard limit are equal. Above its soft limit a process is a candidate for MPS to end
    when others lack memory, and a soft limit of 0 would make every process one.

    A pod without a cgroup has no processes, so there is nothing to limit: calls about it succeed.

    Raises:
        HardwareError: a limit is not what it should be, or cannot be read.
    """

    def __init__(self, nvml: Nvml, cgroups: PodCgroups) -> None:
        self._nvml = nvml
        self._cgroups = cgroups

    def problem(self, gpus: Iterable[GpuUuid]) -> str | None:
        """Why pods of this node cannot be limited; empty where they can, None where no card can
        tell now. ``gpus``: cards that are not in MIG mode; one stands for all."""
        if found := self._cgroups.problem():
            return found
        for gpu in gpus:
            try:
                self._try(gpu)
            except HardwareError as error:
                if error.code in _CANNOT:
                    return str(error)
                continue  # its health says so
            return ""
        return None

    def has_cgroup(self, pod: str) -> bool:
        return self._cgroups.find(pod) is not None

    # The step ----------------------------------------------------------------------------

    def set(self, step: LimitPod) -> None:
        path = self._cgroups.find(step.pod)
        if path is not None:
            with _unless_gone(path):
                self._set(step.gpu, path, step.memory, step.memory)
                found = self._get(step.gpu, path)
                if not _holds(found, step.memory):
                    raise _not_as_set(step.gpu, path, found, f"{step.memory} bytes")

    def clear(self, step: LimitPod) -> None:
        """The driver adds soft limits up along the parents, and takes off only what it sees end:
        so before the kubelet removes the cgroup."""
        path = self._cgroups.find(step.pod)
        if path is None:
            return
        with _unless_gone(path):
            if not self._get(step.gpu, path, _NEVER_SET):
                return
            self._set(step.gpu, path, 0, _UNLIMITED)
            if found := self._get(step.gpu, path):
                raise _not_as_set(step.gpu, path, found, "none")

    def holds(self, step: LimitPod) -> bool:
        path = self._cgroups.find(step.pod)
        if path is not None:
            with _unless_gone(path):
                return _holds(self._get(step.gpu, path), step.memory)
        return True

    # -------------------------------------------------------------------------------------

    def _try(self, gpu: GpuUuid) -> None:
        """Where no limit is set the getter may refuse, as a driver that cannot would: setting
        "none" then tells them apart, and changes nothing."""
        (path, *_) = self._cgroups.kubepods()
        with self._nvml.on(gpu) as handle:
            asked = struct("c_nvmlGetMemoryLimits_v1_t", bytes(path))
            try:
                ask(_GET, handle, asked)
            except HardwareError as error:
                if error.code not in _UNSET:
                    raise
                ask(_SET, handle, struct("c_nvmlSetMemoryLimits_v1_t", bytes(path), 0, _UNLIMITED))

    def _set(self, gpu: GpuUuid, path: Path, soft: int, hard: int) -> None:
        with self._nvml.on(gpu) as handle:
            ask(_SET, handle, struct("c_nvmlSetMemoryLimits_v1_t", bytes(path), soft, hard))

    def _get(self, gpu: GpuUuid, path: Path, unset: Set[int] = _UNSET) -> tuple[int, int] | None:
        """Soft and hard limit in bytes; None where none is set, which ``unset`` codes mean."""
        asked = struct("c_nvmlGetMemoryLimits_v1_t", bytes(path))
        with self._nvml.on(gpu) as handle:
            try:
                ask(_GET, handle, asked)
            except HardwareError as error:
                if error.code in unset:
                    return None
                raise
        found = int(asked.softLimit), int(asked.hardLimit)
        return None if found == (0, _UNLIMITED) else found


def _holds(found: tuple[int, int] | None, wanted: int) -> bool:
    return found is not None and all(wanted - _PAGE < each <= wanted for each in found)


@contextmanager
def _unless_gone(path: Path) -> Iterator[None]:
    """A refusal is none where the cgroup went away meanwhile."""
    try:
        yield
    except HardwareError:
        if path.is_dir():
            raise


def _not_as_set(
    gpu: GpuUuid, path: Path, found: tuple[int, int] | None, wanted: str
) -> HardwareError:
    soft, hard = found or ("no", "no")
    return HardwareError(
        f"{_SET} of {gpu} and {path}",
        f"reported success, but a soft limit of {soft} and a hard limit of {hard} bytes are set "
        f"and {wanted} was wanted; another program sets them, or the driver does not keep them",
    )
