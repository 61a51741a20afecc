"""Processes by pid and start time, as ``/proc`` tells: a pid alone may be another's by now."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MARK = "ALIQUOT_MPS_CARD"  # in the environment of our daemons and of what they start
SPEC = "ALIQUOT_MPS_SPEC"

_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class Process:
    """One process, never another one that got its pid later."""

    pid: int
    start: int  # clock ticks after boot

    @property
    def alive(self) -> bool:
        """A zombie is dead: PID 1 of a container may never reap it."""
        return start_of(self.pid) == self.start

    def signal(self, number: int) -> None:
        """Send a signal; that the process is gone is fine."""
        with contextlib.suppress(ProcessLookupError):
            fd = open_pidfd(self.pid)
            if fd is None:  # before Linux 5.3: a pid could be given out again in between
                if self.alive:
                    os.kill(self.pid, number)
                return
            try:
                if self.alive:  # after the pidfd is open it stays this process
                    signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within that time."""
        end = time.monotonic() + timeout_s
        while self.alive:
            left = end - time.monotonic()
            if left <= 0:
                return False
            sleep_until_ends(self.pid, min(left, 1.0))
        return True

    def end(self, timeout_s: float) -> bool:
        """SIGTERM, after ``timeout_s`` SIGKILL. Whether it is gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            if self.wait(timeout_s):
                return True
        return False


def open_pidfd(pid: int) -> int | None:
    """None where the kernel has none. Raises ProcessLookupError."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def sleep_until_ends(pid: int, timeout_s: float) -> None:
    """Return when it ended or after ``timeout_s``, whichever is first."""
    try:
        fd = open_pidfd(pid)
    except ProcessLookupError:
        return
    if fd is None:
        time.sleep(min(timeout_s, _PAUSE_S))
        return
    try:
        waiter = select.poll()
        waiter.register(fd, select.POLLIN)
        if waiter.poll(timeout_s * 1000) and start_of(pid) is not None:
            time.sleep(_PAUSE_S)  # its main thread ended, others have not
    finally:
        os.close(fd)


def start_of(pid: int) -> int | None:
    """Start time in clock ticks after boot; None for one that is gone or a zombie."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="latin-1")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a name may hold blanks and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def found(pid: int) -> Process | None:
    """The process that has this pid now."""
    start = start_of(pid)
    return None if start is None else Process(pid, start)


def environment(pid: int) -> Mapping[str, str]:
    """Empty for a process that is gone or not ours to read."""
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def arguments(pid: int) -> tuple[str, ...]:
    """The command line; empty for a process that is gone."""
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(map(os.fsdecode, data.rstrip(b"\0").split(b"\0")))


def is_ours(pid: int, folder: Path) -> bool:
    """Whether it was started for the card of this folder, and by our user."""
    try:
        owner = (PROC / str(pid)).stat().st_uid
    except OSError:
        return False
    return owner == os.geteuid() and environment(pid).get(MARK) == str(folder)


def is_daemon(pid: int) -> bool:
    """Whether it is the control daemon itself, neither its launcher nor a server of it."""
    return "-f" in arguments(pid)


def every_pid() -> Iterable[int]:
    """All processes that we can see."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def boot_id() -> str:
    """Another one after each reboot."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def wall_clock(start: int) -> float:
    """Seconds since 1970 of a start time; the same at each look unless the clock was set."""
    stat = (PROC / "stat").read_text(encoding="ascii")
    boot = next(line.split()[1] for line in stat.splitlines() if line.startswith("btime "))
    return int(boot) + start / os.sysconf("SC_CLK_TCK")
