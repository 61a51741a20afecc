"""What the harness says to the person who waits for it: one line a step, with its time."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """Write one line to standard error, at once."""
    sys.stderr.write(f"e2e: {text}\n")
    sys.stderr.flush()


@contextmanager
def phase(what: str) -> Iterator[None]:
    """Report how long the body took, in seconds, when it ends well."""
    begin = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - begin:.1f} s")
