"""A cgroup v2 hierarchy of plain files, with pods as the kubelet lays them out.

Sources: ``pkg/kubelet/cm`` of kubernetes (``NewCgroupName``, ``GetPodContainerName``, the systemd
driver's names) and cgroups(7): each cgroup of v2 has a file ``cgroup.controllers``.
"""

import shutil
from pathlib import Path
from typing import Literal

QosClass = Literal["guaranteed", "burstable", "besteffort"]
Driver = Literal["systemd", "cgroupfs"]

_CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc dmem\n"


def make_root(cgroups: Path, driver: Driver = "systemd", below: str = "") -> Path:
    """The hierarchy with the kubelet's own cgroup in it, which is returned. ``below``: one name
    that the kubelet's ``--cgroup-root`` is set to."""
    _make(cgroups)
    if driver == "cgroupfs":
        return _make(*_lined(cgroups, *filter(None, [below]), "kubepods"))
    first = [f"{below}.slice"] if below else []
    return _make(*_lined(cgroups, *first, f"{_prefix(below)}kubepods.slice"))


def add_pod(
    cgroups: Path,
    uid: str,
    qos: QosClass = "burstable",
    driver: Driver = "systemd",
    below: str = "",
) -> Path:
    """The cgroup of a pod, as the kubelet makes it before it prepares the pod's claims."""
    kubepods = make_root(cgroups, driver, below)
    middle = "" if qos == "guaranteed" else qos
    if driver == "cgroupfs":
        return _make(*_lined(kubepods, *filter(None, [middle]), f"pod{uid}"))
    prefix = f"{_prefix(below)}kubepods-" + (f"{middle}-" if middle else "")
    slices = [f"{prefix.removesuffix('-')}.slice"] if middle else []
    return _make(*_lined(kubepods, *slices, f"{prefix}pod{uid.replace('-', '_')}.slice"))


def remove_pod(path: Path) -> None:
    """What the kubelet does after the pod's end."""
    shutil.rmtree(path)


def _prefix(below: str) -> str:
    return f"{below}-" if below else ""


def _lined(start: Path, *names: str) -> list[Path]:
    found = [start]
    for name in names:
        found.append(found[-1] / name)
    return found


def _make(*paths: Path) -> Path:
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
        (path / "cgroup.controllers").write_text(_CONTROLLERS)
    return paths[-1]
