"""Who uses a card, how much of it, and in which pod."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

from driver.errors import HardwareError, NotSupportedError
from driver.hw.codes import Return
from driver.hw.nvml import Handle, Nvml, ask
from driver.model.gpu import GpuProcess
from driver.model.ids import GpuUuid
from driver.model.usage import ProcessUse

_WINDOW_US = 5_000_000  # samples that are older say nothing of now; the driver takes 6 a second

# "…/kubepods-burstable-pod<uid>.slice/…" with the systemd driver, which writes "_" for "-", and
# "…/kubepods/burstable/pod<uid>/…" with cgroupfs; under v1 and v2, and below other folders where
# the kubelet itself runs in a container.
_HEX = "[0-9a-f]"
_POD = re.compile(
    rf"[-/]pod({_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}})(?:\.slice)?(?=/|$)"
)


class CardUsage:
    """Reads processes from NVML and their pods from ``/proc`` below ``root``. Calls block.

    NVML tells pids of the host, so this process must see them too (``hostPID``); those it does
    not see have no pod and no name.
    """

    def __init__(self, nvml: Nvml, root: Path) -> None:
        self._nvml = nvml
        self._proc = root / "proc"

    def uses(self, gpu: GpuUuid) -> tuple[ProcessUse, ...]:
        """Every process with a compute context on the card, clients of MPS servers included.

        Raises:
            HardwareError: the card does not answer.
        """
        with self._nvml.on(gpu) as handle:
            plain = {each.pid: each for each in self._nvml.processes(handle)}
            clients = {each.pid: each for each in self._clients(handle)}
            busy = _multiprocessor_use(handle)
        return tuple(
            self._use(each, busy, mps_client=pid in clients)
            for pid, each in sorted((plain | clients).items())
        )

    def _clients(self, handle: Handle) -> tuple[GpuProcess, ...]:
        try:
            return self._nvml.processes(handle, mps=True)
        except NotSupportedError:
            return ()

    def _use(
        self, process: GpuProcess, busy: Mapping[int, int] | None, *, mps_client: bool
    ) -> ProcessUse:
        percent = None if busy is None else busy.get(process.pid, 0)
        pod, name = self.pod(process.pid), self.name(process.pid)
        return ProcessUse(process.pid, process.memory, percent, mps_client, pod, name)

    def pod(self, pid: int) -> str | None:
        """UID of the pod that a process belongs to."""
        return pod_of_cgroups(self._read(pid, "cgroup"))

    def name(self, pid: int) -> str:
        """What the kernel calls its program; at most 15 bytes (proc(5))."""
        return self._read(pid, "comm").strip()

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_text(errors="replace")
        except OSError:
            return ""


def pod_of_cgroups(text: str) -> str | None:
    """The pod's UID in the text of ``/proc/<pid>/cgroup``; the innermost where pods nest."""
    found = _POD.findall(text.lower())
    return found[-1].replace("_", "-") if found else None


def _multiprocessor_use(handle: Handle) -> Mapping[int, int] | None:
    """Percent of the multiprocessors by pid, of the newest sample of each process; what did
    nothing is left out. None in MIG mode and on cards that take no samples."""
    try:
        samples = ask("nvmlDeviceGetProcessUtilization", handle, _now_us() - _WINDOW_US)
    except NotSupportedError:
        return None
    except HardwareError as error:
        # NOT_FOUND where nothing was sampled; pynvml raises a SUCCESS without samples, too.
        if error.code in {Return.SUCCESS, Return.NOT_FOUND}:
            return {}
        raise
    newest = sorted(samples, key=lambda sample: int(sample.timeStamp))
    return {int(sample.pid): int(sample.smUtil) for sample in newest}


def _now_us() -> int:
    return time.time_ns() // 1000  # NVML stamps samples with microseconds since 1970
