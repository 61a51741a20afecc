"""Keeps the picture of the cards fresh: polls, waits for events, publishes what changed."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from api.policy import NodePolicy, PolicyProblems, parse_policy
from driver.errors import HardwareError, NvmlMissingError, PolicyError
from driver.hw.health import HealthSource
from driver.hw.nvml import Nvml
from driver.model.ids import DeviceName, GpuUuid
from driver.model.mig import Place
from driver.model.readings import XidEvent
from driver.node import Change, NodeCards
from driver.plan.sharing import without_room
from driver.sharing import Seen
from driver.state.journal import Journal

log = logging.getLogger(__name__)

_Found: TypeAlias = tuple[XidEvent, ...] | Exception

_WAIT_S = 1.0  # the longest that one wait for events blocks its thread
_PAUSE_S = 5.0  # after an error of the wait, which may come back at once for ever


def read_policy(
    path: Path | None, node: str, labels: Mapping[str, str] | None = None
) -> NodePolicy:
    """The node's policy, with what it says for this name and these labels folded in.

    The default one where no file is named.

    Raises:
        PolicyError: the file cannot be read, or has mistakes: all are listed.
    """
    if path is None:
        return NodePolicy()
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise PolicyError(str(path), [f"cannot be read: {why}"]) from error
    try:
        return parse_policy(text, str(path)).for_node(node, labels or {})
    except PolicyProblems as error:
        raise PolicyError(str(path), error.problems) from error


class CardWatch:
    """Owns the calls that change ``cards``; everything else only reads them."""

    def __init__(
        self,
        cards: NodeCards,
        nvml: Nvml,
        source: HealthSource,
        journal: Journal,
        publish: Callable[[], None],
        tell: Callable[[Change], None],
    ) -> None:
        self._cards = cards
        self._nvml = nvml
        self._source = source
        self._journal = journal
        self._publish = publish
        self._tell = tell
        self._turn = asyncio.Lock()
        self._stop = threading.Event()
        self._no_intervals = ""  # why time slices cannot be set
        self._no_room: Mapping[GpuUuid, str] = {}  # for shares, by the policy: as told
        self.problem = ""  # why NVML as a whole does not answer
        self.answered = False  # NVML was asked at least once, successfully or not

    def held_gpus(self) -> Set[GpuUuid]:
        return {gpu for record in self._journal.all() for gpu in record.gpus}

    def held_devices(self) -> Set[DeviceName]:
        return {held.allocation.device for record in self._journal.all() for held in record.held}

    def places(self) -> Set[Place]:
        """What records hold, by position; admin access included, because it is somebody's."""
        return {held.place for record in self._journal.all() for held in record.held}

    async def refresh(self) -> None:
        """Enumerate and read every card anew, then publish what differs."""
        async with self._turn:
            changes = await asyncio.to_thread(self._refresh)
        self._report(changes)

    def _refresh(self) -> tuple[Change, ...]:
        held = self.held_gpus()
        try:
            self._nvml.open()
            strange = self._cards.refresh(held, self.places)
            self._source.watch(self._cards.gpus)
            changes = (*strange, *self._cards.apply(self._source.poll()), *self._roomless())
            self.problem = ""
        except HardwareError as error:
            changes = self._all_lost(error)
        self.answered = True
        self._cards.save()
        return changes

    def _roomless(self) -> tuple[Change, ...]:
        """Cards that the policy leaves no room for shares, where that was not told yet."""
        told = self._no_room
        self._no_room = dict(without_room(self._cards.inventory, self._cards.policy))
        return tuple(
            Change(gpu, text, "PolicyLeavesNoRoom")
            for gpu, text in self._no_room.items()
            if told.get(gpu) != text
        )

    def _all_lost(self, error: HardwareError) -> tuple[Change, ...]:
        if str(error) != self.problem:
            log.error("the cards of this node cannot be read: %s", error)
        self.problem = str(error)
        if isinstance(error, NvmlMissingError):
            self._nvml.close()  # a driver that was reloaded answers who opens NVML anew
        return self._cards.all_lost(self.problem)

    async def poll(self, *, regular: bool = True) -> None:
        """Read the health of every known card. ``regular``: one health interval after the last
        time."""
        if self.problem:
            await self.refresh()
            return
        async with self._turn:
            changes = await asyncio.to_thread(self._poll, regular)
        if changes:
            self._report(changes)

    def _poll(self, regular: bool) -> tuple[Change, ...]:
        try:
            readings = [replace(each, regular=regular) for each in self._source.poll()]
        except HardwareError as error:
            changes = self._all_lost(error)
        else:
            changes = self._cards.apply(readings)
        if changes:
            self._source.refresh()
            self._cards.save()
        return changes

    async def take(self, events: Iterable[XidEvent]) -> None:
        """Events say that something happened; a poll right after says what it came to."""
        async with self._turn:
            changes = self._cards.apply(events)
            if changes:
                await asyncio.to_thread(self._cards.save)
        self._report(changes)
        await self.poll(regular=False)

    def _report(self, changes: Iterable[Change]) -> None:
        for change in changes:
            log.warning(
                "card %s: %s",
                change.gpu,
                change.text or change.again,
                extra={"gpu": change.gpu},
            )
            self._tell(change)
        self._publish()

    async def take_sharing(self, seen: Seen) -> None:
        """Another look at the MPS supervisor."""
        async with self._turn:
            changes = self._cards.take_sharing(seen, self.held_gpus())
            await asyncio.to_thread(self._cards.save)
        self._report(changes)

    async def look_at_time_slices(self) -> None:
        """Find out whether they can be set; said once where they cannot."""
        if not self._cards.takes_turns:
            return
        async with self._turn:
            held = self.held_gpus()
            problem = await asyncio.to_thread(self._cards.look_at_time_slices, held)
            await asyncio.to_thread(self._cards.save)
        if problem != self._no_intervals:
            self._no_intervals = problem
            log.info("intervals of time slices: %s", problem or "can be set")
            self._publish()

    async def listen(self) -> None:
        """Wait for NVML's events for ever, on a thread of its own; its bugs are raised here."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[_Found] = asyncio.Queue()
        thread = threading.Thread(
            target=self._wait_for_events,
            args=(lambda found: loop.call_soon_threadsafe(events.put_nowait, found),),
            name="nvml events",
            daemon=True,
        )
        thread.start()
        try:
            while True:
                found = await events.get()
                if isinstance(found, Exception):
                    raise found
                await self.take(found)
        finally:
            self._stop.set()
            self._source.close()

    def _wait_for_events(self, put: Callable[[_Found], object]) -> None:
        told = ""
        while not self._stop.is_set():
            try:
                found: _Found = self._source.wait(_WAIT_S)
            except HardwareError as error:
                if str(error) != told:  # it may last for days
                    log.warning("waiting for NVML events: %s", error)
                told = str(error)
                self._stop.wait(_PAUSE_S)
                continue
            except Exception as error:  # noqa: BLE001 - raised by ``listen``: never a silent end
                put(error)
                return
            told = ""
            if found and not self._stop.is_set():
                put(found)


class PolicyFile:
    """Looks whether the policy file, or the node's labels, changed. A bad file changes nothing
    and is reported."""

    def __init__(self, path: Path | None, node: str) -> None:
        self._path = path
        self._node = node
        self._labels: Mapping[str, str] = {}
        self._seen = self._content()
        self.problem = ""

    @property
    def named(self) -> bool:
        """Whether there is a file at all, so that labels can matter."""
        return self._path is not None

    def set_labels(self, labels: Mapping[str, str]) -> None:
        """Labels of the Node object; ``changed`` goes by them from now on."""
        if labels != self._labels:
            self._labels = dict(labels)
            self._seen = None

    def changed(self) -> NodePolicy | None:
        """The new policy, or None where it is as before or has mistakes (``problem``)."""
        content = self._content()
        if content == self._seen:
            return None
        self._seen = content
        try:
            policy = read_policy(self._path, self._node, self._labels)
        except PolicyError as error:
            self.problem = str(error)
            log.error("the earlier node policy stays in force: %s", error)
            return None
        self.problem = ""
        log.info("node policy %s changed and is in force", self._path)
        return policy

    def _content(self) -> bytes | None:
        try:
            return self._path.read_bytes() if self._path else None
        except OSError:
            return None
