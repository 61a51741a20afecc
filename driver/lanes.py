"""One queue a card through which it is changed.

The queue is an ``asyncio.Lock`` and the work runs on a thread. That pair is only right because
the holder is a task that nobody cancels (``kubeletplugin.work`` runs each claim's work so): a
cancelled holder would free the lock while its thread still changes the card.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import TypeVar

from driver.model.ids import GpuUuid

T = TypeVar("T")

# Threads sleep in NVML or fsync, so more than the cores; a slow card must not use up the pool.
_THREADS = 64


class Lanes:
    def __init__(self) -> None:
        self._locks: dict[GpuUuid, asyncio.Lock] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lane")

    async def run(self, gpus: Iterable[GpuUuid], call: Callable[[], T]) -> T:
        """Run blocking ``call`` on a thread, alone on each of ``gpus``.

        Lanes are taken in sorted order, so that two claims on several cards cannot wait for each
        other. The task that awaits this must not be cancelled.
        """
        async with AsyncExitStack() as held:
            for gpu in sorted(set(gpus)):
                await held.enter_async_context(self._locks.setdefault(gpu, asyncio.Lock()))
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Let go of the threads; running calls end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)
