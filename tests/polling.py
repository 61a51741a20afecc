"""Wait for a condition instead of sleeping: bounded by tries, not asserted on time."""

import asyncio
import time
from collections.abc import Callable

TRIES, PAUSE_S = 1500, 0.01


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Return once ``condition()`` is true; fail after 1500 tries."""
    for _ in range(TRIES):
        if condition():
            return
        await asyncio.sleep(PAUSE_S)
    raise AssertionError(f"never came true: {what or condition}")


def eventually_sync(condition: Callable[[], object], what: str = "") -> None:
    """The same outside of an event loop."""
    for _ in range(TRIES):
        if condition():
            return
        time.sleep(PAUSE_S)
    raise AssertionError(f"never came true: {what or condition}")
