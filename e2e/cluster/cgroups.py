"""The cgroup folders of a cluster's pods, on cgroup v1 (hybrid too) and v2.

The kubelet refuses a ``cgroupRoot`` that is missing in any controller ("has some missing
paths"), so the folder is made in all of them first.
"""

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from e2e.cluster.polling import poll

V2_CONTROLLERS = ("cpuset", "cpu", "memory", "pids", "hugetlb", "io")


@dataclass(frozen=True)
class Mounts:
    """Where the hierarchies are. Hybrid hosts have both, v2 without controllers."""

    v1: tuple[Path, ...]
    v2: tuple[Path, ...]

    @property
    def with_controllers(self) -> tuple[Path, ...]:
        """The hierarchies a kubelet uses."""
        return self.v1 or self.v2


def parse_mounts(text: str) -> Mounts:
    """The cgroup mounts in the text of ``/proc/mounts``."""
    rows = [line.split() for line in text.splitlines()]
    of_type = {
        kind: tuple(Path(row[1]) for row in rows if len(row) > 2 and row[2] == kind)
        for kind in ("cgroup", "cgroup2")
    }
    return Mounts(of_type["cgroup"], of_type["cgroup2"])


def _mounts() -> Mounts:
    return parse_mounts(Path("/proc/mounts").read_text(encoding="utf-8"))


def create(name: str) -> None:
    """Make the folder ``name`` at the top of every hierarchy with controllers."""
    mounts = _mounts()
    for root in mounts.with_controllers:
        if root in mounts.v2:
            _delegate(root)
        folder = root / name
        folder.mkdir(exist_ok=True)
        _fill_cpuset(root, folder)


def _delegate(root: Path) -> None:
    """Hand v2 controllers down, one by one: a kernel lacks some, and one refusal undoes all."""
    offered = (root / "cgroup.controllers").read_text(encoding="ascii").split()
    for controller in set(V2_CONTROLLERS).intersection(offered):
        (root / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def _fill_cpuset(root: Path, folder: Path) -> None:
    """A new v1 cpuset group is empty and takes no process until both files are filled."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        source, target = root / file, folder / file
        if source.exists() and target.exists() and not target.read_text(encoding="ascii").strip():
            target.write_text(source.read_text(encoding="ascii"), encoding="ascii")


def _folders(name: str) -> list[Path]:
    mounts = _mounts()  # runc makes groups in the v2 hierarchy of a hybrid host too
    return [root / name for root in (*mounts.v1, *mounts.v2) if (root / name).is_dir()]


def pids(name: str) -> set[int]:
    """Every process in the groups below ``name``."""
    found: set[int] = set()
    for folder in _folders(name):
        for file in folder.rglob("cgroup.procs"):
            found.update(_read_pids(file))
    return found


def _read_pids(file: Path) -> Iterable[int]:
    try:
        return [int(line) for line in file.read_text(encoding="ascii").split()]
    except OSError:  # the group went away while we looked
        return []


def remove(name: str, timeout_s: float = 10.0) -> None:
    """Remove the groups, deepest first. A group is busy for a moment after its last process."""
    for folder in _folders(name):
        poll(partial(_remove_tree, folder), f"{folder} to be empty", timeout_s)


def _remove_tree(folder: Path) -> bool:
    try:
        for child in sorted(folder.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            child.rmdir()
        folder.rmdir()
    except FileNotFoundError:
        return not folder.exists()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
