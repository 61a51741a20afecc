"""Child processes of a command: started in order, stopped in reverse, whatever happens.

They end even where nobody is left to stop them: see ``cli.tied``.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from cli.tied import NONE, STOP_S

_TAIL = 15  # lines of a log that are shown when its process failed
_PACKAGES = str(Path(__file__).resolve().parent.parent)
_T = TypeVar("_T")


class ChildError(Exception):
    """A child ended early or did not do what was waited for."""


class Children:
    """An async context: at its end every child is gone. Each writes ``<name>.log``."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def start(
        self, name: str, module: str, arguments: Sequence[str], mps: Path | None = None
    ) -> int:
        """Run ``python -m <module>`` with our own interpreter and packages; returns its pid.

        It gets a session of its own, so that Ctrl-C reaches it through us and in order. ``mps``
        is the socket of an MPS supervisor, whose control daemons shall end with us too.
        """
        path = os.pathsep.join(filter(None, [_PACKAGES, os.environ.get("PYTHONPATH")]))
        with (self._logs / f"{name}.log").open("wb") as log:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "cli.tied",
                NONE if mps is None else str(mps),
                module,
                *arguments,
                stdin=asyncio.subprocess.PIPE,  # its end is ours: nothing is written
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        self._running[name] = child
        return child.pid

    def check(self) -> None:
        """Raises ``ChildError`` if one has ended."""
        for text in self.ended():
            raise ChildError(text)

    def ended(self) -> Iterator[str]:
        """What is to be said of each child that ended by itself."""
        for name, child in self._running.items():
            if child.returncode is not None:
                yield f"process {name} ended by itself, status {child.returncode}"

    def tails(self) -> Iterator[str]:
        """The last lines of every child's log, under its name."""
        for log in sorted(self._logs.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-_TAIL:]
            yield "\n".join([f"the end of {log.name}:", *(f"  {line}" for line in lines)])

    async def stop(self, name: str) -> int:
        """SIGTERM, after ``STOP_S`` SIGKILL; returns the exit status, negative for a signal."""
        child = self._running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(child.wait(), STOP_S)
        except TimeoutError:
            child.kill()
            return await child.wait()

    async def __aenter__(self) -> "Children":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in reversed(tuple(self._running)):
            await self.stop(name)


async def until(
    find: Callable[[], Awaitable[_T]], children: Children, what: str, limit_s: float = 30.0
) -> _T:
    """What ``find`` gives once that is true (in Python's sense); it is asked again and again.

    Raises:
        ChildError: a child ended, or ``limit_s`` is over; ``what`` says what was waited for.
    """
    clock = asyncio.get_running_loop()
    end = clock.time() + limit_s
    while True:
        found = await find()
        if found:
            return found
        children.check()
        if clock.time() > end:
            raise ChildError(f"waited {limit_s:g} s for {what}; it did not happen")
        await asyncio.sleep(0.02)
