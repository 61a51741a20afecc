"""Where work hangs that does not end in time, for the log: whoever reads it was not there."""

import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

_FRAMES = 6  # of each thread, the innermost


def whereabouts() -> str:
    """What the threads of this process, apart from the caller's own, are doing now."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    told = (
        f"thread {names.get(ident, ident)}: {_joined(_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != own
    )
    return "; ".join(told) or "no other thread"


def waiting_at(awaited: Any) -> str:
    """Down through the coroutines that a task waits in: "Pool.request (http1.py:70)", outermost
    first."""
    return _joined(_chain(awaited))


def _chain(awaited: Any) -> Iterator[FrameType]:
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        yield frame
        awaited = awaited.cr_await


def _stack(frame: FrameType | None) -> list[FrameType]:
    """Outermost first. Not ``traceback``'s, which reads the source files for their lines."""
    found: list[FrameType] = []
    while frame is not None and len(found) < _FRAMES:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _joined(frames: Iterable[FrameType]) -> str:
    return " > ".join(
        f"{each.f_code.co_qualname} ({each.f_code.co_filename.rpartition('/')[2]}:{each.f_lineno})"
        for each in frames
    )
