"""One process's connection to the simulated library: init count, handles, event sets, dispatch."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driver.sim.nvml.codes import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SUCCESS,
    UNINITIALIZED,
    UNKNOWN,
    Refused,
)
from driver.sim.nvml.cvalues import handle_value, put_handle
from driver.sim.nvml.handles import (
    COMPUTE_INSTANCE,
    GPU_INSTANCE,
    MIG_DEVICE,
    Handle,
    decode,
    encode,
)
from driver.sim.nvml.registry import Symbol
from driver.sim.profiles import PROFILES, Profile
from driver.sim.store import SimulationError, Store
from driver.sim.topology import Card, cards
from driver.sim.world import ComputeInstance, Fault, GpuInstance, GpuState, World


@dataclass(slots=True)
class EventSet:
    """Registrations of one event set: per card the types wanted and where its queue began."""

    cursor: int  # sequence number of the last event looked at
    wanted: dict[int, tuple[int, int]] = field(default_factory=dict)
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class Gpu:
    """A card as a call sees it. ``state`` is to read; write through ``session.store``."""

    session: "Session"
    world: World
    profile: Profile
    card: Card
    state: GpuState
    part: GpuInstance | None = None  # of an instance's or MIG device's handle
    compute: ComputeInstance | None = None

    @property
    def index(self) -> int:
        """NVML's index."""
        return self.card.index

    @property
    def minor(self) -> int:
        """Of ``/dev/nvidia<minor>``."""
        return self.card.index if self.state.minor is None else self.state.minor


class Session:
    """The library as loaded into this process. Thread-safe as NVML is."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        world = self.store.read()
        self.profile = PROFILES[world.profile]
        self.cards = cards(self.profile, world.count, world.seed)
        self.by_uuid = {card.uuid: card.index for card in self.cards}
        self.by_pci = {card.pci.address: card.index for card in self.cards}
        self.references = 0
        self.event_sets: dict[int, EventSet] = {}
        self.lock = threading.Lock()
        self._generation = 0
        self._numbers = itertools.count(1)
        self._views: tuple[World | None, dict[int, Gpu]] = None, {}  # cards that passed all checks

    def bind(self, symbol: Symbol) -> Callable[..., Any]:
        """The function that stands for a C symbol: checks, injected faults, then the work."""
        on_card = symbol.kind in {"device", "gpu instance", "compute instance"}
        body = self._on_card if on_card else self._elsewhere

        def call(*arguments: Any) -> Any:
            try:
                return body(symbol, arguments)
            except Refused as refused:
                return refused.code
            except SimulationError:
                return UNKNOWN  # the node's folder was removed below us

        return call

    def handle(self, handle: Handle) -> int:
        """The number of a handle, valid until the last nvmlShutdown."""
        return encode(handle, self._generation)

    def next_number(self) -> int:
        """A number for a new event set, never used before in this process."""
        return next(self._numbers)

    def init(self, world: World) -> int:
        """``nvmlInit``: counts references; only the first one needs library and driver."""
        with self.lock:
            if self.references == 0 and world.library != "ok":
                missing = world.library == "missing"
                return LIBRARY_NOT_FOUND if missing else DRIVER_NOT_LOADED
            self.references += 1
        return SUCCESS

    def shutdown(self) -> int:
        """``nvmlShutdown``: the last one drops handles and event sets."""
        with self.lock:
            if self.references == 0:
                return UNINITIALIZED
            self.references -= 1
            if self.references == 0:
                self._generation += 1
                self._views = None, {}
                for events in self.event_sets.values():
                    events.closed = True
                self.event_sets = {}
        return SUCCESS

    def _on_card(self, symbol: Symbol, arguments: tuple[Any, ...]) -> Any:
        world, number = self.store.read(), handle_value(arguments[0])
        known_world, views = self._views
        gpu = views.get(number) if known_world is world else None
        if gpu is None or symbol.name in world.unusual or not _allowed(symbol, world):
            gpu = self._view(symbol, number)
        return symbol.run(gpu, *arguments[1:])

    def _view(self, symbol: Symbol, number: int) -> Gpu:
        """The card or instance behind a handle, after all checks; cards are kept for next time."""
        world = self.store.read()
        if world.driver_major < symbol.since:
            raise Refused(FUNCTION_NOT_FOUND)
        if self.references == 0:
            raise Refused(UNINITIALIZED)
        handle = decode(number, self._generation, len(self.cards))
        if symbol.name in world.unusual:
            self._disturb(world, symbol, handle.card)
            world = self.store.read()  # it may have taken a while
        state = world.gpu(handle.card)
        if state.lost:
            raise Refused(GPU_IS_LOST)
        if symbol.privileged and not world.privileged:
            raise Refused(NO_PERMISSION)
        gpu = Gpu(self, world, self.profile, self.cards[handle.card], state)
        if handle.kind or symbol.kind != "device":
            _enter(gpu, symbol, handle)
        else:
            views = self._views
            if views[0] is not world:
                views = self._views = world, {}
            views[1][number] = gpu
        return gpu

    def _elsewhere(self, symbol: Symbol, arguments: tuple[Any, ...]) -> Any:
        world = self.store.read()
        if world.driver_major < symbol.since:
            return FUNCTION_NOT_FOUND
        if self.references == 0 and symbol.kind != "free":
            return UNINITIALIZED
        found = symbol.run(self, world, *arguments) if symbol.kind == "lookup" else None
        if symbol.name in world.unusual:
            self._disturb(world, symbol, None if found is None else found.card)
        if found is None:
            return symbol.run(self, world, *arguments)
        if world.gpu(found.card).lost:
            return GPU_IS_LOST
        return put_handle(arguments[-1], self.handle(found))

    def _disturb(self, world: World, symbol: Symbol, index: int | None) -> None:
        """Injected latency, then injected faults."""
        time.sleep(world.latency.get(symbol.name, 0))
        code = None
        with self.store.update() as fresh:
            for fault in [f for f in fresh.faults if _matches(f, symbol.name, index)]:
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                code = fault.code
                if fault.count is not None:
                    fault.count -= 1
                break
            fresh.faults = [f for f in fresh.faults if f.count is None or f.count > 0]
        if code is not None:
            raise Refused(code)


def _allowed(symbol: Symbol, world: World) -> bool:
    """True where a card that passed the checks of one call passes those of this one."""
    return (
        symbol.kind == "device"
        and world.driver_major >= symbol.since
        and (world.privileged or not symbol.privileged)
    )


def _matches(fault: Fault, symbol: str, index: int | None) -> bool:
    return symbol in fault.symbols and fault.gpu in (None, index)


def _enter(gpu: Gpu, symbol: Symbol, handle: Handle) -> None:
    """Find the instance behind a handle, which must be of the kind that the call takes."""
    if symbol.kind == "device" and not symbol.mig:
        raise Refused(NOT_SUPPORTED)
    if handle.kind != _KINDS[symbol.kind]:
        raise Refused(INVALID_ARGUMENT)
    gpu.part = gpu.state.find(handle.gpu_instance)
    if gpu.part is not None and handle.kind != GPU_INSTANCE:
        gpu.compute = gpu.part.find(handle.compute_instance)
    if gpu.part is None or (gpu.compute is None and handle.kind != GPU_INSTANCE):
        raise Refused(INVALID_ARGUMENT)  # destroyed


_KINDS = {
    "device": MIG_DEVICE,
    "gpu instance": GPU_INSTANCE,
    "compute instance": COMPUTE_INSTANCE,
}
