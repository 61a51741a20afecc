"""One queue a card through which it is changed.

The queue is an ``asyncio.Lock`` and the work runs on a thread. That pair is only right because
the holder is a task that nobody cancels (``kubeletplugin.work`` runs each claim's work so): a
cancelled holder would free the lock while its thread still changes the card.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

from driver.model.ids import GpuUuid

T = TypeVar("T")
_Job: TypeAlias = "tuple[asyncio.Future[Any], Callable[[], Any]]"

# Threads sleep in NVML or fsync, so more than the cores; a slow card must not use up the pool.
_THREADS = 64


class Lanes:
    """Threads of its own: a ThreadPoolExecutor takes twice as long to hand work there and back
    (0.5 ms after an idle pause), and at exit it waits for a thread that hangs in NVML."""

    def __init__(self) -> None:
        self._locks: dict[GpuUuid, asyncio.Lock] = {}
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._busy = 0  # jobs that run or wait, counted on the event loop
        self._started: set[asyncio.Future[None]] = set()  # or they may vanish half-way

    async def run(
        self,
        gpus: Iterable[GpuUuid],
        call: Callable[[], T],
        *,
        brief: Callable[[], bool] = lambda: False,
    ) -> T:
        """Run blocking ``call`` on a thread, alone on each of ``gpus``; on the event loop where
        ``brief``, asked when the lanes are taken, says so: handing it to a thread and back would
        take longer than the call.

        Lanes are taken in sorted order, so that two claims on several cards cannot wait for each
        other. The task that awaits this must not be cancelled.
        """
        held: list[asyncio.Lock] = []
        try:
            for gpu in sorted(set(gpus)):
                lock = self._locks.setdefault(gpu, asyncio.Lock())
                await lock.acquire()
                held.append(lock)
            return call() if brief() else await self._on_a_thread(call)
        finally:
            for lock in reversed(held):
                lock.release()

    def start(self, call: Callable[[], None]) -> None:
        """Run ``call``, which must not raise, on a thread and go on; from the event loop."""
        task = asyncio.ensure_future(self._on_a_thread(call))
        self._started.add(task)
        task.add_done_callback(self._started.discard)

    async def _on_a_thread(self, call: Callable[[], T]) -> T:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < _THREADS:
            name = f"lane_{len(self._threads)}"
            self._threads.append(Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        self._jobs.put((done, call))
        try:
            return await done
        finally:
            self._busy -= 1

    def _work(self) -> None:
        while job := self._jobs.get():
            done, call = job
            try:
                tell, outcome = _result, call()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the caller's to see
                tell, outcome = _error, error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                done.get_loop().call_soon_threadsafe(tell, done, outcome)
            del job, done, call, outcome  # an idle thread keeps nothing alive

    def close(self) -> None:
        """Let go of the threads; running calls end by themselves."""
        for _ in self._threads:
            self._jobs.put(None)


def _result(done: "asyncio.Future[Any]", outcome: Any) -> None:
    if not done.done():
        done.set_result(outcome)


def _error(done: "asyncio.Future[Any]", outcome: Any) -> None:
    if not done.done():
        done.set_exception(outcome)
