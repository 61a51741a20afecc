"""The one way in which tests wait: ask again until it is so, for a bounded time."""

import time
from collections.abc import Callable
from typing import TypeVar

from e2e.cluster.errors import WaitTimeoutError

T = TypeVar("T")


def poll(
    probe: Callable[[], T | None],
    what: str,
    timeout_s: float = 60.0,
    interval_s: float = 0.05,
    detail: Callable[[], str] = lambda: "",
) -> T:
    """Call ``probe`` until it returns something true, and return that.

    ``probe`` runs at least once, and once more after the time is over, so that a slow machine
    does not turn a condition that holds into a failure. Raises WaitTimeoutError, whose text is
    ``what`` and, if given, ``detail()``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last_try = time.monotonic() >= deadline
        if found := probe():
            return found
        if last_try:
            break
        time.sleep(interval_s)
    more = detail()
    raise WaitTimeoutError(f"waited {timeout_s:g} s for {what}{': ' + more if more else ''}")
