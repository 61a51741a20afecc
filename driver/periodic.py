"""Checks that run again and again beside the work on claims."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def every(seconds: float, act: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    """Again and again until ``stop``; what goes wrong once is logged and tried again."""
    while not await _is_set_within(stop, seconds):
        try:
            await act()
        except Exception:
            log.exception("a periodic check hit a bug; it runs again in %g s", seconds)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
