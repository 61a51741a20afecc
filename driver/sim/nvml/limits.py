"""Memory limits by cgroup (R615 and newer), as NVIDIA's documentation of autumn 2026 has them.

Documented, not run: no node with R615 was at hand. Sources: the NVML API reference
(``nvmlSetMemoryLimits_v1_t``, ``nvmlGetMemoryLimits_v1_t``) and "MPS v3 Memory Partitioning" at
docs.nvidia.com/deploy/mps. What they leave open is the strictest of what they allow.
"""

import os
from pathlib import Path
from typing import Any

from driver.sim.nvml.codes import INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Refused
from driver.sim.nvml.cvalues import fill, target
from driver.sim.nvml.registry import R615, symbol
from driver.sim.nvml.session import Gpu
from driver.sim.world import MemoryLimit

_MAX = (1 << 64) - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX: no limit
_OF_EVERY_GROUP = "cgroup.controllers"  # a file that each cgroup of v2 has, and none of v1


@symbol("nvmlDeviceSetMemoryLimits_v1", since=R615, privileged=True)
def _set(gpu: Gpu, limits: Any) -> int:
    """Clears them with soft 0 and hard MAX. NOT_SUPPORTED in MIG mode, NOT_FOUND where the path
    is no cgroup of v2."""
    asked = target(limits)
    path, inode = _group(gpu, asked.nameSpace)
    soft, hard = int(asked.softLimit), int(asked.hardLimit)
    if soft > hard:
        return INVALID_ARGUMENT
    with gpu.session.store.update() as world:
        state = world.change(gpu.index)
        state.memory_limits = [
            each for each in state.memory_limits if each.path != path and os.path.isdir(each.path)
        ]
        if (soft, hard) != (0, _MAX):
            state.memory_limits.append(MemoryLimit(path, inode, soft, hard))
    return 0


@symbol("nvmlDeviceGetMemoryLimits_v1", since=R615)
def _get(gpu: Gpu, limits: Any) -> int:
    """Soft 0 and hard MAX where none is set. Needs no rights."""
    asked = target(limits)
    path, inode = _group(gpu, asked.nameSpace)
    known = gpu.state.memory_limits
    found = next((each for each in known if (each.path, each.inode) == (path, inode)), None)
    soft, hard = (0, _MAX) if found is None else (found.soft, found.hard)
    fill(asked, ("softLimit", "hardLimit", "currentUsed"), (soft, hard, 0))
    return 0


def _group(gpu: Gpu, name: str | None) -> tuple[str, int]:
    """The cgroup's path and inode."""
    if gpu.state.mig_current:
        raise Refused(NOT_SUPPORTED)
    path = Path(name or "")  # pynvml gives bytes out as text
    if not path.is_absolute():
        raise Refused(INVALID_ARGUMENT)
    if not (path / _OF_EVERY_GROUP).is_file():
        raise Refused(NOT_FOUND)
    return str(path), path.stat().st_ino
