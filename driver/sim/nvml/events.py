"""Event sets: registration and waiting."""

import time
from typing import Any

from driver.sim.nvml.codes import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    Refused,
)
from driver.sim.nvml.cvalues import handle_value, number, put, put_handle, put_handle_field, target
from driver.sim.nvml.handles import Handle
from driver.sim.nvml.registry import symbol
from driver.sim.nvml.session import EventSet, Gpu, Session
from driver.sim.world import Event, World

XID = 0x8  # nvmlEventTypeXidCriticalError
_ECC = 0x1 | 0x2  # single and double bit
_MIG_CONFIG = 0x100
_BASE = 0x7E00_0000_0000
_POLL = 0.02  # seconds; each look costs one stat


def supported(gpu: Gpu) -> int:
    """Event types of a card."""
    return XID | _ECC | (_MIG_CONFIG if gpu.profile.mig_capable else 0)


@symbol("nvmlDeviceGetSupportedEventTypes")
def _supported(gpu: Gpu, out: Any) -> int:
    return put(out, supported(gpu))


@symbol("nvmlEventSetCreate", "system")
def _create(session: Session, world: World, out: Any) -> int:
    handle = _BASE + session.next_number() * 16
    with session.lock:
        session.event_sets[handle] = EventSet(cursor=world.event_seq)
    return put_handle(out, handle)


@symbol("nvmlEventSetFree", "system")
def _free(session: Session, _world: World, handle: Any) -> int:
    with session.lock:
        events = session.event_sets.pop(handle_value(handle), None)
    if events is None:
        return INVALID_ARGUMENT
    events.closed = True
    return SUCCESS


@symbol("nvmlDeviceRegisterEvents")
def _register(gpu: Gpu, types: Any, handle: Any) -> int:
    """Only what happens from now on is reported, of the types asked for."""
    wanted = number(types)
    if wanted & ~supported(gpu):
        return NOT_SUPPORTED
    events = _event_set(gpu.session, handle)
    with events.lock:
        before, since = events.wanted.get(gpu.index, (0, gpu.world.event_seq))
        events.wanted[gpu.index] = before | wanted, since
    return SUCCESS


@symbol("nvmlEventSetWait_v2", "system")
def _wait(session: Session, _world: World, handle: Any, out: Any, timeout: Any) -> int:
    """The next event, or TIMEOUT (10) as an error; GPU_IS_LOST names no card (nvml.h)."""
    events = _event_set(session, handle)
    deadline = time.monotonic() + number(timeout) / 1000
    while not events.closed:
        world = session.store.read()
        event = _next(events, world)
        if event is not None:
            return _deliver(session, event, target(out))
        if any(world.gpu(index).lost for index in list(events.wanted)):
            return GPU_IS_LOST
        left = deadline - time.monotonic()
        if left <= 0:
            return TIMEOUT
        time.sleep(min(_POLL, left))
    return INVALID_ARGUMENT


def _event_set(session: Session, handle: Any) -> EventSet:
    events = session.event_sets.get(handle_value(handle))
    if events is None:
        raise Refused(INVALID_ARGUMENT)
    return events


def _next(events: EventSet, world: World) -> Event | None:
    if events.cursor >= world.event_seq:
        return None
    with events.lock:
        for event in world.events:
            if event.seq <= events.cursor:
                continue
            events.cursor = event.seq
            types, since = events.wanted.get(event.gpu, (0, 0))
            if event.type & types and event.seq > since:
                return event
    return None


def _deliver(session: Session, event: Event, data: Any) -> int:
    put_handle_field(data, "device", session.handle(Handle(event.gpu)))
    data.eventType, data.eventData = event.type, event.data
    data.gpuInstanceId, data.computeInstanceId = event.gpu_instance, event.compute_instance
    return SUCCESS
