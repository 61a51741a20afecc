"""A cgroup for each card outside the supervisor's pod, in every hierarchy.

The kubelet kills what is left in any of a pod's cgroups, so a daemon that stayed in one
controller would end with the pod (measured with cgroup v1; version 2 has one hierarchy).
"""

import contextlib
import errno
import time
from pathlib import Path

from mps.settings import CGROUP

MOUNTS = Path("/proc/self/mounts")
_TRIES, _PAUSE_S = 20, 0.01  # a group is busy for a moment after its last process


def hierarchies(root: Path, mounts: str) -> tuple[Path, ...]:
    """The cgroup mounts at or below ``root``, v1 and v2 (hybrid hosts have both)."""
    rows = (line.split() for line in mounts.splitlines())
    points = (Path(row[1]) for row in rows if len(row) > 2 and row[2] in ("cgroup", "cgroup2"))
    return tuple(sorted({point for point in points if point.is_relative_to(root)}))


class Cgroups:
    """The groups ``<hierarchy>/aliquot-mps/<id>``."""

    def __init__(self, roots: tuple[Path, ...], name: str = CGROUP) -> None:
        self._roots = roots
        self._name = name

    @classmethod
    def below(cls, root: Path | None) -> "Cgroups":
        """Without a root daemons stay in the supervisor's own group.

        Raises:
            OSError: nothing is mounted there.
        """
        if root is None:
            return cls(())
        roots = hierarchies(root, MOUNTS.read_text(encoding="utf-8"))
        if not roots:
            raise FileNotFoundError(
                errno.ENOENT,
                f"no cgroup hierarchy is mounted at or below {root}; mount the host's "
                "/sys/fs/cgroup there, or set --cgroup-root (none: daemons end with this pod)",
            )
        return cls(roots)

    @property
    def used(self) -> bool:
        return bool(self._roots)

    def make(self, card: str) -> tuple[Path, ...]:
        """Make the card's group everywhere; returns the files to write a pid to.

        Raises:
            OSError: a hierarchy is read-only or lacks something; the error names it.
        """
        files = []
        for root in self._roots:
            group = root / self._name / card
            for folder in (group.parent, group):
                folder.mkdir(exist_ok=True)
                _fill_cpuset(folder)
            files.append(group / "cgroup.procs")
        return tuple(files)

    def pids(self, card: str) -> tuple[int, ...]:
        """Every process in the card's groups."""
        found: set[int] = set()
        for root in self._roots:
            with contextlib.suppress(OSError):  # not made yet, or gone
                text = (root / self._name / card / "cgroup.procs").read_text(encoding="ascii")
                found.update(map(int, text.split()))
        return tuple(sorted(found))

    def remove(self, card: str) -> None:
        """Remove the card's groups. One that is still busy stays, which does no harm."""
        for root in self._roots:
            _remove(root / self._name / card)


def _fill_cpuset(folder: Path) -> None:
    """A new v1 cpuset group is empty and takes no process ("No space left on device")."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        source, target = folder.parent / name, folder / name
        if source.exists() and target.exists() and not target.read_text(encoding="ascii").strip():
            target.write_text(source.read_text(encoding="ascii"), encoding="ascii")


def _remove(group: Path) -> None:
    for _ in range(_TRIES):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_PAUSE_S)
