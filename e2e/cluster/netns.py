"""A network namespace: made, entered by a thread, by a process, and deleted.

A socket belongs to the namespace in which it was made. So a test process stays outside and only
makes its sockets inside (``entered``), and several clusters can be used from one process.
Processes enter with ``nsenter --net=``. ``ip netns exec`` would mount a new ``/sys``, without
the cgroups that a kubelet needs.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000
"""Flag of setns(2) for a network namespace (linux/sched.h)."""


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)} (root is needed)")


@dataclass(frozen=True)
class NetNamespace:
    """A named network namespace as ``ip netns`` keeps them."""

    name: str

    @property
    def path(self) -> Path:
        """The file that keeps the namespace alive."""
        return Path("/var/run/netns") / self.name

    def create(self) -> None:
        """Make the namespace. Raises CalledProcessError if one of this name exists."""
        _ip("netns", "add", self.name)

    def delete(self) -> None:
        """Remove the name; the namespace goes with its last process. Absent is fine."""
        if self.path.exists():
            _ip("netns", "del", self.name)

    def ip(self, *args: str) -> None:
        """Run ``ip`` inside, for example ``ip("link", "set", "lo", "up")``."""
        subprocess.run(self.argv(["ip", *args]), check=True, capture_output=True)

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` inside; nsenter becomes it, so the pid stays."""
        return ["nsenter", f"--net={self.path}", *argv]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread (no other) into the namespace for the body."""
        back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            inside = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _setns(inside)
            finally:
                os.close(inside)
            try:
                yield
            finally:
                _setns(back)
        finally:
            os.close(back)

    def pids(self) -> set[int]:
        """Every process inside, but not this one."""
        try:
            wanted = self.path.stat()
        except FileNotFoundError:
            return set()
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _same_namespace(entry / "ns/net", wanted):
                found.add(int(entry.name))
        return found - {os.getpid()}


def _same_namespace(link: Path, wanted: os.stat_result) -> bool:
    try:
        seen = link.stat()
    except OSError:  # the process has ended meanwhile
        return False
    return (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino)


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)
