"""The supervisor ended at any of its effects: before it, or after it and before what follows.

In this process by an exception that nothing catches, in another one by SIGKILL.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mps import daemon, files, layout
from mps.cgroups import Cgroups
from mps.frontend import FrontEnd
from mps.proc import Process

# Everything that changes the node, or asks a control daemon to change itself.
EFFECTS: tuple[tuple[Any, str], ...] = (
    (files, "write"),
    (files, "remove"),
    (layout, "make_folders"),
    (layout, "remove_folders"),
    (daemon.Daemon, "_spawn"),
    (daemon.Daemon, "_await"),
    (FrontEnd, "_run"),
    (Process, "end"),
    (Cgroups, "make"),
    (Cgroups, "remove"),
)


class Cut(BaseException):
    """Where the supervisor was ended."""


class Cutter:
    """Counts both edges of every effect and cuts at one of them; ``at`` from 1, 0: never."""

    def __init__(self, at: int, cut: Callable[[], None]) -> None:
        self._at = at
        self._cut = cut
        self.count = 0

    def edge(self) -> None:
        self.count += 1
        if self.count == self._at:
            self._cut()

    def wrapped(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self.edge()
            found = effect(*arguments, **options)
            self.edge()
            return found

        return run


@contextmanager
def cutting(at: int, cut: Callable[[], None]) -> Iterator[Cutter]:
    """All effects are counted, and the ``at``-th edge is a cut."""
    cutter = Cutter(at, cut)
    kept = [(owner, name, getattr(owner, name)) for owner, name in EFFECTS]
    for owner, name, effect in kept:
        setattr(owner, name, cutter.wrapped(effect))
    try:
        yield cutter
    finally:
        for owner, name, effect in kept:
            setattr(owner, name, effect)


def raise_cut() -> None:
    raise Cut


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """``python -m tests.mps.cuts EDGE …``: the supervisor, killed at that edge."""
    from mps.__main__ import main as serve  # noqa: PLC0415

    at = int(sys.argv.pop(1))
    with cutting(at, kill_this_process):
        return serve()


if __name__ == "__main__":
    sys.exit(main())
