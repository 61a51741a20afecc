"""When the publisher looks next."""

import asyncio
import random
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    relist_s: float = 60.0  # an authoritative LIST at least this often
    debounce_s: float = 1.0  # after a change by somebody else; doubles while it repeats
    debounce_max_s: float = 30.0
    backoff_s: float = 0.5  # after an error, doubling
    backoff_max_s: float = 60.0


class Clock:
    """One deadline that the reasons to look move; ``wait`` returns when it has come."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._due_at = float("inf")
        self._moved = asyncio.Event()
        self._failures = 0
        self._blocked = False  # only the driver can help
        self._disputed = False
        self._disputes = 0  # looks in a row at which somebody else's change had to be undone

    @property
    def due(self) -> bool:
        return self._due_at <= time.monotonic()

    async def wait(self) -> None:
        while not self.due:
            self._moved.clear()
            left = self._due_at - time.monotonic()
            try:
                await asyncio.wait_for(
                    self._moved.wait(), None if left == float("inf") else max(left, 0.0)
                )
            except TimeoutError:
                continue
        self._due_at = float("inf")

    def now(self) -> None:
        """The driver wants something."""
        self._blocked = False
        self._set(0.0)

    def foreign(self) -> None:
        """Somebody changed or deleted what is ours; more of it may follow within the second."""
        self._disputed = True
        wait = min(self.timing.debounce_max_s, self.timing.debounce_s * 2.0**self._disputes)
        self._sooner(wait)

    def done(self, wrote: bool) -> None:
        """All is as it should be; ``wrote`` if it had to be made so."""
        self._failures = 0
        self._disputes = min(self._disputes + 1, 16) if wrote and self._disputed else 0
        self._disputed = False
        self._sooner(self.timing.relist_s * random.uniform(0.9, 1.0))  # noqa: S311

    def again(self) -> None:
        """The plan was made from an old picture: once at once, then with back-off."""
        if self._failures:
            self.failed(None)
        else:
            self._failures = 1
            self._sooner(0.0)

    def failed(self, retry_after: float | None) -> None:
        wait = min(self.timing.backoff_max_s, self.timing.backoff_s * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._sooner(max(retry_after or 0.0, wait * random.uniform(0.5, 1.0)))  # noqa: S311

    def never(self) -> None:
        """Not before ``now``."""
        self._failures = 0
        self._blocked = True
        self._due_at = float("inf")

    def _sooner(self, wait: float) -> None:
        if not self._blocked and time.monotonic() + wait < self._due_at:
            self._set(wait)

    def _set(self, wait: float) -> None:
        self._due_at = time.monotonic() + wait
        self._moved.set()
