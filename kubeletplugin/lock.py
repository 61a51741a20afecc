"""One instance at a time: an flock for each socket folder.

Binding a Unix socket that another process still serves succeeds and steals it, and that process's
stop then deletes the file. So nothing binds without these locks. The kernel frees them with the
process, however it ends.
"""

import asyncio
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path


class InstanceLock:
    """Exclusive locks on several files, taken in the given order; all or none."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._held: dict[Path, int] = {}

    @property
    def held(self) -> bool:
        return bool(self._held)

    def try_acquire(self) -> bool:
        """Take all locks now, or none and return False.

        Raises:
            OSError: a folder is missing or not writable; the error names it.
        """
        for path in self._files:
            if path in self._held:
                continue
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                self.release()
                return False
            self._held[path] = fd
        return True

    async def acquire(self, poll_s: float = 0.1) -> None:
        """Wait for the locks. Polls, since a blocking flock in a thread cannot be cancelled."""
        while not self.try_acquire():  # noqa: ASYNC110 - another process holds it: nothing to await
            await asyncio.sleep(poll_s)

    def intact(self) -> bool:
        """Whether the lock files are still the ones we hold: a wiped folder lets others in."""
        return all(_same_file(path, fd) for path, fd in self._held.items())

    def retake(self) -> bool:
        """Lock files again that somebody deleted. False: another instance was faster."""
        for path, fd in tuple(self._held.items()):
            if not _same_file(path, fd):
                os.close(self._held.pop(path))
        return self.try_acquire()

    def release(self) -> None:
        """Give all locks back. The files stay: deleting them would let two instances in."""
        while self._held:
            _, fd = self._held.popitem()
            os.close(fd)


def _same_file(path: Path, fd: int) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    ours = os.fstat(fd)
    return (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)
