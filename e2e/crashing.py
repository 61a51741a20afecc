"""``aliquot`` that kills itself at a chosen effect: ``python -m e2e.crashing FILE node run …``.

FILE, if there, holds lines ``PHASE N``: the process gets SIGKILL right before its Nth effect of
that phase (prepare, unprepare, recover). The line is taken out first, so that the next process
goes on. Effects are what a crash can fall between: files made, synced, renamed or deleted, and
changes to a card. When a phase ends without having reached N, the line is replaced by
``PHASE never``, so that a test knows that it has seen every effect.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.main import main
from driver.hw.card import Cards
from driver.plugin import GpuDriver


class Crash:
    """Counts effects while a phase runs, in whichever thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._phase = ""
        self._at: int | None = None
        self._count = 0

    def begin(self, phase: str) -> None:
        with self._lock:
            self._phase, self._count, self._at = phase, 0, self._planned(phase)

    def end(self) -> None:
        with self._lock:
            if self._at is not None:
                self._rewrite(f"{self._phase} never")
            self._phase, self._at = "", None

    def effect(self) -> None:
        with self._lock:
            if self._at is None:
                return
            self._count += 1
            if self._count == self._at:
                self._rewrite(None)
                os.kill(os.getpid(), signal.SIGKILL)

    def _lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def _planned(self, phase: str) -> int | None:
        for line in self._lines():
            name, number = line.split()
            if name == phase and number != "never":
                return int(number)
        return None

    def _rewrite(self, instead: str | None) -> None:
        """Without going through what is counted here."""
        rest = [line for line in self._lines() if line.split()[0] != self._phase]
        text = "\n".join(rest + ([instead] if instead else []))
        self._file.write_text(text)


def before_each(crash: Crash, owner: Any, name: str) -> None:
    """Count every call of ``owner.name`` as an effect."""
    real = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        crash.effect()
        return real(*args, **kwargs)

    setattr(owner, name, counted)


def during(crash: Crash, phase: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """The phase lasts as long as the call; one more effect is its end, before the answer."""

    if asyncio.iscoroutinefunction(real):

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            crash.begin(phase)
            try:
                result = await real(*args, **kwargs)
                crash.effect()
                return result
            finally:
                crash.end()

        return awaited

    def called(*args: Any, **kwargs: Any) -> Any:
        crash.begin(phase)
        try:
            result = real(*args, **kwargs)
            crash.effect()
            return result
        finally:
            crash.end()

    return called


def arm(file: Path) -> None:
    crash = Crash(file)
    for name in ("fsync", "replace", "unlink"):
        before_each(crash, os, name)
    before_each(crash, Path, "unlink")
    for name in ("do", "undo"):
        before_each(crash, Cards, name)
    for phase in ("prepare", "unprepare", "recover"):
        setattr(GpuDriver, phase, during(crash, phase, getattr(GpuDriver, phase)))


if __name__ == "__main__":
    arm(Path(sys.argv.pop(1)))
    main()
