"""Work on claims that outlives the call that asked for it.

grpc.aio cancels a handler in the middle when the kubelet's deadline (45 s) passes. A change to the
node must not be cut in half, so it runs as a task of its own; only the waiting is cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Job(Generic[T]):
    kind: str
    task: "asyncio.Task[T]"
    started: bool = False


class ClaimWork(Generic[T]):
    """Jobs of one key run one after another, jobs of different keys side by side.

    A job that waits behind another is shared by all callers that ask for the same kind meanwhile:
    a kubelet that repeats itself while a card is slow adds no queue.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Job[T]] = {}
        self._running: set[asyncio.Task[T]] = set()

    @property
    def busy(self) -> int:
        """Jobs that are running or waiting."""
        return len(self._running)

    async def run(self, key: str, kind: str, call: Callable[[], Awaitable[T]]) -> T:
        """The result of ``call``, started once earlier jobs of ``key`` have ended.

        ``call`` must not raise for ordinary failures: nobody may be left to see it.
        """
        last = self._last.get(key)
        if last is None or last.kind != kind or last.started:
            last = self._add(key, kind, call, last)
        return await asyncio.shield(last.task)

    def coroutine(self, key: str) -> Any:
        """That of the last job of ``key``, to look at; None: there is none."""
        last = self._last.get(key)
        return last and last.task.get_coro()

    def _add(
        self, key: str, kind: str, call: Callable[[], Awaitable[T]], before: "_Job[T] | None"
    ) -> "_Job[T]":
        async def body() -> T:
            if before is not None:
                await asyncio.wait([before.task])
            job.started = True
            return await call()

        job: _Job[T] = _Job(kind, asyncio.create_task(body(), name=f"{kind} {key}"))
        self._last[key] = job
        self._running.add(job.task)
        job.task.add_done_callback(self._running.discard)
        job.task.add_done_callback(lambda _: self._forget(key, job))
        return job

    def _forget(self, key: str, job: "_Job[T]") -> None:
        if self._last.get(key) is job:
            del self._last[key]

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no job is left. False: some still run after ``timeout_s`` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._running:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await asyncio.wait(tuple(self._running), timeout=left)
        return True
