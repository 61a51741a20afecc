"""Where work hangs that does not end in time, for the log: whoever reads it was not there."""

import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

_FRAMES = 6  # of each, the innermost


def whereabouts() -> str:
    """What the threads of this process, apart from the caller's own, are doing now."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    told = (
        f"thread {names.get(ident, ident)}: {_frames(frame)}"
        for ident, frame in sys._current_frames().items()
        if ident != own
    )
    return "; ".join(told) or "no other thread"


def waiting_at(awaited: Any) -> str:
    """Down through the coroutines that a task waits in: "Pool.request (http1.py:70)", outermost
    first."""
    return " > ".join(_chain(awaited))


def _chain(awaited: Any) -> Iterator[str]:
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        code = frame.f_code
        yield f"{code.co_qualname} ({_file(code.co_filename)}:{frame.f_lineno})"
        awaited = awaited.cr_await


def _frames(frame: FrameType) -> str:
    found = traceback.extract_stack(frame)[-_FRAMES:]
    return " > ".join(f"{each.name} ({_file(each.filename)}:{each.lineno})" for each in found)


def _file(path: str) -> str:
    return path.rsplit("/", 1)[-1]
