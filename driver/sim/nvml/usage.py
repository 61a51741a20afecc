"""How much of a card its processes use."""

import time
from typing import Any

from driver.sim.nvml.codes import NOT_FOUND, NOT_SUPPORTED
from driver.sim.nvml.cvalues import fill, room
from driver.sim.nvml.registry import symbol
from driver.sim.nvml.session import Gpu

_FIELDS = ("pid", "timeStamp", "smUtil", "memUtil", "encUtil", "decUtil")


@symbol("nvmlDeviceGetProcessUtilization")
def _process_utilization(gpu: Gpu, array: Any, count: Any, _since: Any) -> int:
    """One sample a busy process, as of now. NOT_FOUND where there is none, NOT_SUPPORTED in MIG
    mode (nvml.h)."""
    if gpu.state.mig_current:
        return NOT_SUPPORTED
    busy = [process for process in gpu.state.processes if process.busy]
    if not busy:
        return NOT_FOUND
    rows = room(count, array, len(busy))
    now = time.time_ns() // 1000  # microseconds, as NVML stamps samples
    for row, process in enumerate(busy):
        fill(rows[row], _FIELDS, (process.pid, now, process.busy, 0, 0, 0))
    return 0
