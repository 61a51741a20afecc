"""Removes every trace of a cluster: the same code ends a test run and clears a crashed one.

Nothing is remembered for it. Processes are found by the network namespace and the cgroup they
are in, mounts by their path, so a killed test process leaves nothing that the next start, or
``python -m e2e clean``, cannot find.
"""

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.cluster.polling import poll

_CNI_RESULTS = Path("/var/lib/cni/results")
_LOG_LINKS = Path("/var/log/containers")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
_SHIM_SOCKETS = Path("/run/containerd/s")
_FIXED_FOLDERS = (
    _SHIM_SOCKETS,
    _SHIM_SOCKETS.parent,
    _CNI_RESULTS,
    _CNI_RESULTS.parent,
    _LOG_LINKS,
    _DEVICE_PLUGINS,
    _DEVICE_PLUGINS.parent,
)
"""Folders that kubelet, CNI and shims use whatever their settings say."""


def mounts_below(mounts: str, folder: Path) -> list[str]:
    """Mount points at or below ``folder`` in the text of /proc/mounts, deepest last mount first.

    The kernel writes blanks in paths as ``\\040``; they are returned as blanks.
    """
    points = [line.split()[1].replace("\\040", " ") for line in mounts.splitlines() if line]
    inside = [point for point in points if point == str(folder) or point.startswith(f"{folder}/")]
    return inside[::-1]


def processes(layout: Layout) -> set[int]:
    """Every process of the cluster: programs, shims, containers."""
    return layout.netns.pids() | cgroups.pids(layout.unique)


def exists(layout: Layout) -> bool:
    """Whether a cluster of this name runs or has left something."""
    return layout.root.exists() or layout.netns.path.exists() or bool(processes(layout))


def remove(layout: Layout, keep_folder: bool = False) -> None:
    """Kill the cluster's processes, undo its mounts, remove its groups and folders.

    ``keep_folder`` leaves the files of the cluster, for reading logs.
    Safe to repeat, and for a cluster that never was. Raises ClusterError if a mount cannot be
    undone (nothing below it is deleted then), WaitTimeoutError if a process does not end.
    """
    _kill(layout)
    _unmount(layout.root)
    cgroups.remove(layout.unique)
    layout.netns.delete()
    _remove_shared_files(layout)
    if not keep_folder:
        _remove_folders(layout)


def _kill(layout: Layout) -> None:
    def none_left() -> bool:
        left = processes(layout)
        for pid in left:
            _signal(pid)
        return not left

    poll(
        none_left,
        f"the processes of cluster {layout.name} to end",
        timeout_s=30,
        interval_s=0.02,
        detail=lambda: f"still there: {sorted(processes(layout))}",
    )


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _unmount(folder: Path) -> None:
    def points() -> list[str]:
        return mounts_below(Path("/proc/mounts").read_text(encoding="utf-8"), folder)

    for point in points():
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    if left := points():
        raise ClusterError(f"still mounted below {folder}, umount by hand: {', '.join(left)}")


def shim_socket(bootstrap: str) -> Path | None:
    """The socket in a shim's ``bootstrap.json``; containerd puts it below /run whatever is set."""
    try:
        address = str(json.loads(bootstrap)["address"])
    except (ValueError, KeyError, TypeError):  # written in part when the shim was killed
        return None
    return Path(address.removeprefix("unix://")) if address.startswith("unix:///") else None


def _remove_shared_files(layout: Layout) -> None:
    for file in (layout.root / "containerd").rglob("bootstrap.json"):
        socket = shim_socket(file.read_text(encoding="utf-8"))
        if socket is not None:
            socket.unlink(missing_ok=True)
    for result in _CNI_RESULTS.glob(f"{layout.unique}-*-eth0"):
        result.unlink(missing_ok=True)
    for link in _LOG_LINKS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(layout.root):
            link.unlink(missing_ok=True)


def _remove_folders(layout: Layout) -> None:
    """The cluster's folder; with the last cluster the fixed ones that nothing else uses."""
    if layout.root.exists():
        shutil.rmtree(layout.root)
    if any(entry != layout.root for entry in _children(layout.root.parent)):
        return
    if _children(_DEVICE_PLUGINS.parent) == [_DEVICE_PLUGINS]:  # no other kubelet lives here
        for name in ("kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"):
            (_DEVICE_PLUGINS / name).unlink(missing_ok=True)
    for folder in (*_FIXED_FOLDERS, layout.root.parent):
        with suppress(OSError):  # absent, or something else uses it
            folder.rmdir()


def _children(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
