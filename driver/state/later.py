"""Work on a disk that nobody waits for: done a moment later, in order, by one thread.

For what the death of the process cannot undo, only a power loss: fsync, and the deletion of files
that were renamed away, which takes six times as long as renaming them.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread

from driver.errors import StateError
from driver.state.files import move_aside, remove, sync

log = logging.getLogger(__name__)

_AFTER_S = 0.005  # the answer to the kubelet goes out first

_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
_starting = Lock()
_worker: Thread | None = None


def _do(job: Callable[[], None]) -> None:
    """The first job begins the one thread of this process."""
    global _worker  # noqa: PLW0603 - one thread, however many folders
    _jobs.put(job)
    with _starting:
        if _worker is None:
            _worker = Thread(target=_work, name="disk", daemon=True)
            _worker.start()


def _work() -> None:
    while True:
        _jobs.get()()


class Later:
    """What is still to be done in one folder. Any thread may call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._written: list[Path] = []
        self._gone: list[Path] = []
        self._due = False

    def sync(self, path: Path) -> None:
        """Bring a file that was just written, and its name, to the disk."""
        with self._lock:
            self._written.append(path)
        self._schedule()

    def discard(self, path: Path) -> None:
        """``path`` is gone at once, and deleted later; that there is none is fine.

        Raises:
            StateError: it is still there.
        """
        aside = move_aside(path)
        if aside is not None:
            with self._lock:
                self._gone.append(aside)
            self._schedule()

    def flush(self) -> None:
        """Wait until all is done that was asked for so far."""
        done = Event()
        _do(done.set)
        done.wait()

    def _schedule(self) -> None:
        with self._lock:
            due, self._due = self._due, True
        if not due:
            _do(self._settle)

    def _settle(self) -> None:
        time.sleep(_AFTER_S)
        with self._lock:
            written, self._written = self._written, []
            gone, self._gone = self._gone, []
            self._due = False
        try:
            for path in written:
                sync(path)
            for path in gone:
                remove(path, durable=False)
            sync(self._folder)
        except StateError as error:
            log.warning("%s: until then a power loss may undo the last changes", error)
