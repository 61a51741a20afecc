"""MPS control daemons outlive the pod that started them, and so a cluster of this machine."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from e2e.cluster.polling import poll
from mps.layout import CardPaths

_CGROUPS = Path("/sys/fs/cgroup")


def pids(run_dir: Path) -> set[int]:
    """Processes whose MPS pipe directory is below ``run_dir``."""
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={run_dir}/".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # ended meanwhile
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def end(run_dir: Path) -> None:
    """Kill what serves cards below ``run_dir``; remove its folders and cgroups. None is fine."""

    def none_left() -> bool:
        left = pids(run_dir)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    poll(none_left, f"the MPS daemons of {run_dir} to end", timeout_s=30)
    if not run_dir.is_dir():
        return
    for folder in run_dir.iterdir():
        group = CardPaths(folder).group
        for made in (*_CGROUPS.glob(f"*/*/{group}"), *_CGROUPS.glob(f"*/{group}")):
            with suppress(OSError):  # busy, or no cgroup
                made.rmdir()
    shutil.rmtree(run_dir)
