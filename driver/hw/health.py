"""What the cards say of their own health, by polling and by events."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from driver.errors import GpuLostError, HardwareError, NotSupportedError, NvmlMissingError
from driver.hw.codes import Return
from driver.hw.nvml import EventSet, Handle, Nvml
from driver.hw.readouts import RawEvent
from driver.model.ids import GpuUuid
from driver.model.readings import CardReading, XidEvent

_T = TypeVar("_T")

_SOME_CARD = XidEvent(gpu=None, xid=None)
_GONE = (Return.NOT_FOUND, Return.GPU_NOT_FOUND)  # NVML stopped listing the card
_LONGEST_WAIT_S = 1.0
_DRAIN_BOUND = 256  # events taken by one wait, so that a storm does not keep it from returning


class HealthSource:
    """Polls and waits; judges nothing. ``poll`` and ``wait`` may run in two threads.

    ``watch`` names the cards. A card that is lost stays known here until it is taken out, so that
    its return is seen.
    """

    def __init__(self, nvml: Nvml, gpus: Iterable[GpuUuid] = ()) -> None:
        self._nvml = nvml
        self._lock = threading.Lock()  # held while waiting: the event set is not freed under it
        self._closed = threading.Event()
        self._gpus: tuple[GpuUuid, ...] = tuple(gpus)
        self._events: EventSet | None = None
        self._registered: tuple[GpuUuid, ...] | None = None  # None: register before waiting
        self._unmonitored: tuple[GpuUuid, ...] = ()
        self._missed: frozenset[GpuUuid] = frozenset()  # of these, those to be tried again
        self._away: frozenset[GpuUuid] = frozenset()  # lost when last polled

    def watch(self, gpus: Iterable[GpuUuid]) -> None:
        """Replace the cards; the next ``wait`` registers them."""
        self._gpus = tuple(gpus)

    @property
    def unmonitored(self) -> tuple[GpuUuid, ...]:
        """Cards of the last registration that send no events: not supported, or lost then."""
        return self._unmonitored

    def poll(self) -> tuple[CardReading, ...]:
        """Read every watched card, in the order they were named.

        A card that does not answer is a reading. Raises NvmlMissingError where NVML is gone. A
        card that has come back is registered for events again by the next ``wait``.
        """
        readings = tuple(self._read(gpu) for gpu in self._gpus)
        away = frozenset(one.gpu for one in readings if one.lost)
        here = frozenset(one.gpu for one in readings if not one.lost)
        if here & (self._away | self._missed):
            self.refresh()
        self._away = away
        return readings

    def wait(self, timeout_s: float) -> tuple[XidEvent, ...]:
        """Block up to ``timeout_s`` (at most 1) for events and return those that are there.

        GPU_IS_LOST, which names no card, comes back as one event without ``gpu``. Any other
        refusal raises HardwareError. After both the next call registers the cards anew; the
        caller pauses before it, because the same answer may come back at once.
        """
        timeout_s = min(timeout_s, _LONGEST_WAIT_S)
        with self._lock:
            if self._registered != self._gpus:
                late = self._take(self._events, 0.0)  # before the set goes, and they with it
                if late:
                    return late
                self._renew()
            if self._events is None:
                self._closed.wait(timeout_s)
            return self._take(self._events, timeout_s)

    def refresh(self) -> None:
        """Let the next ``wait`` register the cards anew: after a reset, say. No event is lost."""
        self._registered = None

    def close(self) -> None:
        """Free the event set, after a ``wait`` that is under way has come back."""
        self._closed.set()
        with self._lock:
            self._free()

    # Polling -----------------------------------------------------------------------------

    def _read(self, gpu: GpuUuid) -> CardReading:
        try:
            with self._nvml.on(gpu) as handle:
                return _signals(self._nvml, gpu, handle)
        except NvmlMissingError:
            raise
        except HardwareError as error:
            return CardReading(gpu=gpu, lost=_is_lost(error), problem=str(error))

    # Events ------------------------------------------------------------------------------

    def _renew(self) -> None:
        """A new event set for the cards of now; none where no card sends events."""
        self._free()
        self._registered = wanted = self._gpus  # first, so that a poll meanwhile can undo it
        try:
            self._events = self._register(wanted)
        except HardwareError:
            self._registered = None
            raise

    def _register(self, gpus: tuple[GpuUuid, ...]) -> EventSet | None:
        """One card that cannot be registered does not keep the others from it."""
        events = self._nvml.create_event_set()
        refusals = {gpu: error for gpu in gpus if (error := self._refusal(gpu, events))}
        self._unmonitored = tuple(refusals)
        self._missed = frozenset(
            gpu for gpu, error in refusals.items() if not isinstance(error, NotSupportedError)
        )
        if len(refusals) < len(gpus):
            return events
        self._release(events)
        return None

    def _refusal(self, gpu: GpuUuid, events: EventSet) -> HardwareError | None:
        try:
            with self._nvml.on(gpu) as handle:
                self._nvml.register(handle, events)
        except NvmlMissingError:
            self._release(events)
            raise
        except HardwareError as error:
            return error
        return None

    def _take(self, events: EventSet | None, timeout_s: float) -> tuple[XidEvent, ...]:
        """The next event and what is queued behind it. An error after events is kept for the next
        call, so that no event is lost."""
        if events is None:
            return ()
        found: list[XidEvent] = []
        timeout_ms = int(timeout_s * 1000)
        try:
            while len(found) < _DRAIN_BOUND:
                raw = self._nvml.wait(events, 0 if found else timeout_ms)
                if raw is None:
                    break
                found.append(self._event(raw))
        except GpuLostError:
            self._free()
            found.append(_SOME_CARD)
        except HardwareError:
            self._free()
            if not found:
                raise
        return tuple(found)

    def _event(self, raw: RawEvent) -> XidEvent:
        try:
            gpu = self._nvml.uuid(Handle(raw.device))
        except HardwareError:
            gpu = None
        return XidEvent(
            gpu=gpu,
            xid=raw.data if raw.is_xid else None,
            gpu_instance=raw.gpu_instance,
            compute_instance=raw.compute_instance,
        )

    def _free(self) -> None:
        events, self._events, self._registered = self._events, None, None
        if events is not None:
            self._release(events)

    def _release(self, events: EventSet) -> None:
        with suppress(HardwareError):  # the library is gone, and the set with it
            self._nvml.free_event_set(events)


def _is_lost(error: HardwareError) -> bool:
    return isinstance(error, GpuLostError) or error.code in _GONE


def _signals(nvml: Nvml, gpu: GpuUuid, handle: Handle) -> CardReading:
    problems: list[str] = []

    def told(read: Callable[[], _T]) -> _T | None:
        """None where not supported; another refusal is noted. Loss of card or library passes."""
        try:
            return read()
        except (GpuLostError, NvmlMissingError):
            raise
        except NotSupportedError:
            return None
        except HardwareError as error:
            problems.append(str(error))
            return None

    # Memory first: it needs an answer of the card, where names and numbers are NVML's own memory.
    told(lambda: nvml.memory(handle))
    rows = told(lambda: nvml.remapped_rows(handle))
    return CardReading(
        gpu=gpu,
        lost=False,
        recovery_action=told(lambda: nvml.recovery_action(handle)),
        ecc_uncorrected=told(lambda: nvml.ecc_uncorrected(handle)),
        remap_pending=rows[0] if rows else None,
        remap_failed=rows[1] if rows else None,
        retired_pending=told(lambda: nvml.retired_pending(handle)),
        problem="; ".join(problems) or None,
    )
