"""Work on a disk that nobody waits for: done a moment later, in order, by one thread.

For what the death of the process cannot undo, only a power loss: fsync, and the deletion of files
that were renamed away, which takes six times as long as renaming them.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

from driver.errors import StateError
from driver.state.files import move_aside, remove, sync

log = logging.getLogger(__name__)

_AFTER_S = 0.005  # the answer to the kubelet goes out first
_FLUSH_S = 10.0  # a disk that hangs must not hold the end of the process
_TOLD = 3  # failures of one round that are told in full: a broken disk fails them all

_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
_starting = Lock()
_worker: Thread | None = None


def _do(job: Callable[[], None]) -> None:
    """The first job begins the one thread of this process. Where none can be had the work is done
    here and now: later than never."""
    _jobs.put(job)
    if not _begin():
        with contextlib.suppress(Empty):
            while True:
                _one(_jobs.get_nowait())


def _begin() -> bool:
    global _worker  # noqa: PLW0603 - one thread, however many folders
    with _starting:
        if _worker is not None and _worker.is_alive():  # none outlives a fork
            return True
        worker = Thread(target=_work, name="disk", daemon=True)
        try:
            worker.start()
        except RuntimeError:  # the limit of threads is reached
            return False
        _worker = worker
        return True


def _work() -> None:
    while True:
        _one(_jobs.get())


def _one(job: Callable[[], None]) -> None:
    try:
        job()
    except Exception:  # the thread serves every folder, and whoever waits in ``flush``
        log.exception("work on the disk that was put off: an error of the driver's own")


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
        """Wait until all is tried that was asked for so far: 10 s at most, then it says so."""
        done = Event()
        _do(done.set)
        if not done.wait(_FLUSH_S):
            log.warning(
                "%s: the disk has not taken the last changes within %g s: a power loss may undo "
                "them",
                self._folder,
                _FLUSH_S,
            )

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
        failed = [
            *_each(sync, written),
            *_each(lambda path: remove(path, durable=False), gone),
            *_each(sync, [self._folder]),
        ]
        if failed:
            more = len(failed) - _TOLD
            log.warning(
                "%s%s: a power loss may undo these changes",
                "; ".join(failed[:_TOLD]),
                f"; and {more} more of {self._folder}" if more > 0 else "",
            )


def _each(act: Callable[[Path], None], paths: Iterable[Path]) -> Iterator[str]:
    """Why ``act`` failed, for those that it failed for: that is no matter to the others."""
    for path in paths:
        try:
            act(path)
        except StateError as error:
            yield str(error)
        except Exception as error:  # noqa: BLE001 - as above
            yield f"{path}: {error!r}"
