"""One thread a card: whatever is slow or stuck there holds up no other card."""

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from mps.keeper import Keeper
from mps.proc import open_pidfd

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Job = tuple["Future[Any]", Callable[[Keeper, float], Any]]


class Lane:
    """Runs calls for a card in order, and looks after its daemon between them.

    ``retire`` is asked when the card is not served and nothing waits; True ends the thread.
    """

    def __init__(self, name: str, keeper: Keeper, retire: Callable[["Lane"], bool]) -> None:
        self._keeper = keeper
        self._retire = retire
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = self._ended = False
        self._ending = threading.Lock()
        self.taken_over = threading.Event()  # the state is known
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def keeper(self) -> Keeper:
        """For its ``state`` alone, from other threads."""
        return self._keeper

    @property
    def idle(self) -> bool:
        return self._jobs.empty() and self._keeper.record is None

    def submit(self, work: Callable[[Keeper, float], _T]) -> "Future[_T]":
        """Run ``work`` in the lane, after what was submitted before."""
        done: Future[_T] = Future()
        self._jobs.put((done, work))
        self._wake_up()
        return done

    def close(self, timeout_s: float) -> None:
        """End the thread after the work at hand. Daemons go on."""
        self._closing = True
        self._wake_up()
        self._thread.join(timeout_s)

    def _wake_up(self) -> None:
        with self._ending:
            if not self._ended:
                os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            with self._ending:
                self._ended = True
                os.close(self._wake)

    def _loop(self) -> None:
        self._guarded(self._keeper.take_over)
        self.taken_over.set()
        wait_s = 0.0
        while not self._closing:
            self._sleep(wait_s)
            self._work()
            if self._keeper.record is None and self._retire(self):
                break
            wait_s = self._guarded(self._keeper.tick) or 0.0

    def _guarded(self, look: Callable[[float], _T]) -> _T | None:
        """A fault of ours must not end the lane: the card would be served by nobody."""
        try:
            return look(time.monotonic())
        except Exception:
            log.exception("looking after card %s failed", self._thread.name)
            time.sleep(1.0)  # not in a tight loop
            return None

    def _work(self) -> None:
        while not self._closing:
            try:
                done, work = self._jobs.get_nowait()
            except Empty:
                return
            try:
                done.set_result(work(self._keeper, time.monotonic()))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                done.set_exception(error)

    def _sleep(self, wait_s: float) -> None:
        """Until work comes, the daemon ends, or the time is over."""
        waiter = select.poll()
        waiter.register(self._wake, select.POLLIN)
        pidfd = self._open_pidfd()
        try:
            if pidfd is not None:
                waiter.register(pidfd, select.POLLIN)
            waiter.poll(wait_s * 1000)
        finally:
            if pidfd is not None:
                os.close(pidfd)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _open_pidfd(self) -> int | None:
        pid = self._keeper.pid
        try:
            return None if pid is None else open_pidfd(pid)
        except ProcessLookupError:
            return None
