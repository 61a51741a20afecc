"""Follows the MPS supervisor: whether it answers, what it can do, how its daemons are."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from driver.errors import HardwareError
from driver.hw.mps import MpsCards
from driver.model.ids import GpuUuid
from driver.sharing import Seen
from mps.protocol import CardState, SupervisorInfo

log = logging.getLogger(__name__)

WAIT_S = 20.0  # one question stands so long; an answer comes at once when something changes
FIRST_S = 2.0  # the first ResourceSlice waits no longer
RETRY_S = 1.0  # while nobody answers

_Found: TypeAlias = Seen | Exception


class MpsWatch:
    """``take`` gets every look that differs from the one before, on the event loop."""

    def __init__(self, mps: MpsCards, take: Callable[[Seen], Awaitable[None]]) -> None:
        self._mps = mps
        self._take = take
        self._stop = threading.Event()
        self._told = ""

    async def look(self) -> None:
        """Look once, before anything is served."""
        if self._mps.configured:
            try:
                seen = await asyncio.wait_for(asyncio.to_thread(self._once), FIRST_S)
            except TimeoutError:  # it hangs: the start goes on without it
                seen = Seen(problem=f"the MPS supervisor does not answer within {FIRST_S:g} s")
            await self._report(seen)

    async def listen(self) -> None:
        """Follow it for ever, on a thread of its own; its bugs are raised here."""
        if not self._mps.configured:
            await asyncio.Event().wait()  # the task's end would mean a failure
        loop = asyncio.get_running_loop()
        found: asyncio.Queue[_Found] = asyncio.Queue()
        thread = threading.Thread(
            target=self._follow,
            args=(lambda seen: loop.call_soon_threadsafe(found.put_nowait, seen),),
            name="mps supervisor",
            daemon=True,
        )
        thread.start()
        try:
            while True:
                seen = await found.get()
                if isinstance(seen, Exception):
                    raise seen
                await self._report(seen)
        finally:
            self._stop.set()

    async def _report(self, seen: Seen) -> None:
        if seen.problem != self._told:
            if seen.problem:
                log.warning("shares by MPS: %s", seen.problem)
            else:
                log.info("shares by MPS: the supervisor answers, and can start daemons")
            self._told = seen.problem
        await self._take(seen)

    def _once(self) -> Seen:
        try:
            return _seen(self._mps.info(), self._mps.changes(0, 0.0))[1]
        except HardwareError as error:
            return Seen(problem=str(error))

    def _follow(self, put: Callable[[_Found], object]) -> None:
        last: Seen | None = None
        info: SupervisorInfo | None = None
        revision = 0
        while not self._stop.is_set():
            try:
                if info is None or not info.protocols:  # it may find its program later
                    info = self._mps.info()
                revision, seen = _seen(info, self._mps.changes(revision, WAIT_S))
            except HardwareError as error:
                info, revision, seen = None, 0, Seen(problem=str(error))
                self._stop.wait(RETRY_S)
            except Exception as error:  # noqa: BLE001 - raised by ``listen``: never a silent end
                _safely(put, error)
                return
            if seen != last and not self._stop.is_set():
                _safely(put, seen)
            last = seen


def _seen(
    info: SupervisorInfo, found: tuple[int, Mapping[GpuUuid, CardState]]
) -> tuple[int, Seen]:
    revision, cards = found
    problem = "" if info.protocols else info.failure or f"{info.program} does not work"
    return revision, Seen(info, cards, problem)


def _safely(put: Callable[[_Found], object], found: _Found) -> None:
    try:
        put(found)
    except RuntimeError:  # the loop is closed: nobody waits any more
        log.debug("a look at the MPS supervisor came too late")
