"""The cgroups of pods: where the kubelet has put them on this node.

Only the unified hierarchy (v2) counts. The kubelet makes a pod's cgroup before it prepares the
pod's claims, and removes it after their end (``syncPod`` and ``SyncTerminatedPod`` of kubernetes).
Names: ``pkg/kubelet/cm`` (``kubepods/burstable/pod<uid>`` with the driver cgroupfs,
``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice`` with systemd;
pods of class guaranteed lie one level higher), below the kubelet's ``--cgroup-root``.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_V2 = "cgroup.controllers"  # at the root of a unified hierarchy, and nowhere in one of v1
_DEPTH = 4  # levels above "kubepods" that are searched: --cgroup-root, a kubelet in a container
_CLASSES = ("burstable", "besteffort")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class PodCgroups:
    """Pods by UID, below ``root`` (``/sys/fs/cgroup``, or what stands for it). Calls block."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kubepods: tuple[Path, ...] = ()  # as last searched

    def problem(self) -> str:
        """Why pods have no cgroups that could be limited; empty where they have."""
        if not (self.root / _V2).is_file():
            return f"{self.root} is not a cgroup v2 hierarchy: start the node with cgroup v2 only"
        if not self.kubepods():
            return (
                f"no kubepods cgroup below {self.root}: the host's hierarchy must be seen there "
                "(--cgroup-root), and the kubelet run with --cgroups-per-qos"
            )
        return ""

    def kubepods(self) -> tuple[Path, ...]:
        """The cgroups that kubelets keep their pods in; more than one where a node is a
        container on another. Searched again only when one of them is gone, or none was found."""
        if not self._kubepods or not all(path.is_dir() for path in self._kubepods):
            self._kubepods = tuple(_search(self.root, _DEPTH))
        return self._kubepods

    def find(self, pod: str) -> Path | None:
        """The cgroup of the pod with this UID; None where it has none, or this is no UID."""
        if not _UID.fullmatch(pod):
            return None
        for kubepods in self.kubepods():
            for path in _places(kubepods, pod):
                if path.is_dir():
                    return path
        return None


def _places(kubepods: Path, pod: str) -> Iterator[Path]:
    if kubepods.suffix != ".slice":
        yield kubepods / f"pod{pod}"
        for each in _CLASSES:
            yield kubepods / each / f"pod{pod}"
        return
    prefix, escaped = kubepods.name.removesuffix(".slice"), pod.replace("-", "_")
    yield kubepods / f"{prefix}-pod{escaped}.slice"
    for each in _CLASSES:
        yield kubepods / f"{prefix}-{each}.slice" / f"{prefix}-{each}-pod{escaped}.slice"


def _search(folder: Path, depth: int) -> Iterator[Path]:
    """Never into a kubelet's own cgroups, of which there may be thousands."""
    for path in _folders(folder):
        if path.name in ("kubepods", "kubepods.slice") or path.name.endswith("-kubepods.slice"):
            yield path
        elif depth > 1:
            yield from _search(path, depth - 1)


def _folders(folder: Path) -> list[Path]:
    """Sorted; none where it went away meanwhile."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(each.path) for each in entries if each.is_dir())
    except OSError:
        return []
