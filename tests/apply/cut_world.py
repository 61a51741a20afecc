"""A node whose cards are cut up, all of it in memory: hardware with the real placement rules,
journal and CDI folder, under the driver's own prepare, unprepare and recovery.

Every change is one *touch*, which can be made to fail or to be the moment of the process's death,
just before or just after it took effect.
"""

from collections.abc import Callable, Coroutine, Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from api.policy import parse_policy
from driver.apply.executor import Executor, Outcome
from driver.errors import DeviceBusyError, HardwareError
from driver.model.claims import ClaimState, Record
from driver.model.devices import Device
from driver.model.gpu import DeviceNode, Gpu, GpuProcess
from driver.model.ids import ClaimUid, DeviceName, GpuUuid
from driver.model.mig import MigDevice, MigInstance, Place, Placement, overlap
from driver.model.steps import CreateMigDevice, EnsureMigMode, ServeMps, Step
from driver.model.units import Bytes
from driver.model.view import NodeView
from driver.plan.allocatable import node_devices
from driver.plan.layout import is_shared
from driver.plan.prepare import Foreign
from driver.plugin import GpuDriver, Identity
from driver.sim.partition import fits
from driver.sim.profiles import PROFILES
from driver.sim.world import GpuInstance
from kubeletplugin.contract import ClaimRef
from tests.apply.world import Crash, Touches
from tests.plan.builders import DRIVER, POOL, cuttable, inventory

T = TypeVar("T")

POLICY = parse_policy("gpus: [{select: {all: true}, modes: [gpu, mig]}]", "policy.yaml")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


@dataclass
class Instance:
    profile_id: int
    placement: Placement
    compute: bool = False
    strange: bool = False


@dataclass
class Cards:
    """What outlives processes: the hardware, and what the driver keeps on disk."""

    board: str
    gpus: tuple[Gpu, ...]
    modes: dict[GpuUuid, bool] = field(default_factory=dict)
    there: dict[GpuUuid, list[Instance]] = field(default_factory=dict)
    records: dict[ClaimUid, Record] = field(default_factory=dict)
    cdi: dict[str, Any] = field(default_factory=dict)
    boot: int = 1
    devices: dict[DeviceName, Device] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = node_devices(inventory(*self.gpus), POLICY)
        self.devices = {each.name: each for each in known if not is_shared(each)}

    def room(self, gpu: GpuUuid, profile_id: int, start: int) -> bool:
        """NVML's own rules."""
        row = PROFILES[self.board].by_id(profile_id)
        assert row is not None
        present = [
            GpuInstance(0, each.profile_id, each.placement.start, each.placement.size)
            for each in self.there[gpu]
        ]
        return fits(PROFILES[self.board], present, row, start)

    def reboot(self) -> None:
        self.boot += 1
        self.cdi.clear()
        for gpu in self.gpus:
            self.there[gpu.uuid] = []
            self.modes[gpu.uuid] = gpu.compute_capability < (9, 0)


class Hardware:
    """The executor's node. Making a partition is two changes, as with NVML, and so is its end."""

    def __init__(self, cards: Cards, touches: Touches) -> None:
        self.cards = cards
        self.touches = touches

    def do(self, step: Step) -> None:
        match step:
            case EnsureMigMode():
                self._mode(step)
            case CreateMigDevice():
                self._create(step)
            case _:
                raise AssertionError(f"no claim asks for {step}")

    def undo(self, step: Step) -> None:
        if isinstance(step, CreateMigDevice) and (found := self._ours(step)):
            if found.compute:
                self.touches.touch("destroy compute", lambda: setattr(found, "compute", False))
            there = self.cards.there[step.gpu]
            self.touches.touch("destroy", lambda: there.remove(found))

    def present(self, step: Step) -> bool:
        if isinstance(step, CreateMigDevice):
            found = self._ours(step)
            return found is not None and found.compute
        assert isinstance(step, EnsureMigMode)
        return self.cards.modes[step.gpu] == step.on

    def has_cgroup(self, pod: str) -> bool:
        raise AssertionError(f"nobody asks for pod {pod}")

    def _mode(self, step: EnsureMigMode) -> None:
        if self.cards.modes[step.gpu] == step.on:
            return
        if not step.toggle:
            raise HardwareError("MIG mode", "is not as wanted")
        if self.cards.there[step.gpu]:
            raise DeviceBusyError("nvmlDeviceSetMigMode", "in use")
        self.touches.touch("mode", lambda: self.cards.modes.update({step.gpu: step.on}))

    def _create(self, step: CreateMigDevice) -> None:
        found = self._ours(step)
        if found is None:
            if not self.cards.modes[step.gpu]:
                raise HardwareError("create", "MIG mode is off")
            if not self.cards.room(step.gpu, step.profile_id, step.placement.start):
                raise HardwareError("create", "INSUFFICIENT_RESOURCES")
            new = found = Instance(step.profile_id, step.placement)
            there = self.cards.there[step.gpu]
            self.touches.touch("create", lambda: there.append(new))
        made = found
        if not made.compute:
            self.touches.touch("create compute", lambda: setattr(made, "compute", True))

    def _ours(self, step: CreateMigDevice) -> Instance | None:
        wanted = (step.profile_id, step.placement)
        there = self.cards.there[step.gpu]
        return next((i for i in there if (i.profile_id, i.placement) == wanted), None)


class Journal:
    """The durable records; ``damaged`` has none."""

    damaged: tuple[Any, ...] = ()

    def __init__(self, cards: Cards, touches: Touches) -> None:
        self._records = cards.records
        self._touches = touches

    def get(self, uid: ClaimUid) -> Record | None:
        return self._records.get(uid)

    def all(self) -> tuple[Record, ...]:
        return tuple(self._records.values())

    def records_on(self, gpus: Iterable[GpuUuid]) -> tuple[Record, ...]:
        wanted = set(gpus)
        return tuple(each for each in self._records.values() if wanted & set(each.gpus))

    def put(self, record: Record) -> None:
        self._touches.touch("put", lambda: self._records.update({record.claim.uid: record}))

    def remove(self, uid: ClaimUid) -> None:
        self._touches.touch("remove", lambda: self._records.pop(uid, None))

    def settle(self, uid: ClaimUid) -> None:
        assert uid not in self._records


class Cdi:
    def __init__(self, cards: Cards, touches: Touches) -> None:
        self._files = cards.cdi
        self._touches = touches

    def ensure(self, name: str, spec: Any) -> bool:
        if self._files.get(name) == spec:
            return False
        self._touches.touch("cdi", lambda: self._files.update({name: spec}))
        return True

    def remove(self, name: str) -> None:
        self._touches.touch("cdi remove", lambda: self._files.pop(name, None))

    def strays(self, kept: Set[str]) -> list[str]:
        return [name for name in self._files if name not in kept]

    def clear_litter(self) -> None:
        pass


class Node:
    """What a prepare asks of the cards."""

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self.devices = cards.devices

    @property
    def served(self) -> Set[ServeMps]:
        return frozenset()

    def view(self, gpus: Iterable[GpuUuid], places: Iterable[Place] = ()) -> NodeView:
        known = {gpu.uuid: gpu for gpu in self._cards.gpus}
        return NodeView(
            DRIVER,
            known,
            {gpu: (DeviceNode("/dev/nvidia0", "/dev/nvidia0"),) for gpu in gpus},
            {
                (gpu, place): MigDevice(f"MIG-{place}", Bytes(1 << 30), ())
                for gpu, place in places
                for each in self._cards.there[gpu]
                if each.placement == place and each.compute
            },
        )

    def processes(self, gpu: GpuUuid, at: Placement | None = None) -> tuple[GpuProcess, ...]:
        return ()

    def looked_ahead(self, gpus: Iterable[GpuUuid]) -> bool:
        return False

    def strangers(self, gpu: GpuUuid) -> tuple[GpuProcess, ...]:
        return ()

    def foreign(self, gpu: GpuUuid, ours: Set[Place]) -> tuple[Foreign, ...]:
        return tuple(
            Foreign(gpu, MigInstance(each.profile_id, each.placement, n))
            for n, each in enumerate(self._cards.there[gpu])
            if (gpu, each.placement) not in ours
        )


class Lanes:
    """One after another anyway."""

    async def run(self, gpus: Iterable[GpuUuid], call: Callable[[], T], **_: object) -> T:
        return call()


class Process:
    """One life of the driver."""

    hardware: Callable[[Any, Touches], Hardware] = Hardware
    node_of: Callable[[Any], Node] = Node

    def __init__(self, cards: Cards, touches: Touches) -> None:
        self.touches = touches
        journal: Any = Journal(cards, touches)
        cdi: Any = Cdi(cards, touches)
        lanes: Any = Lanes()
        executor = Executor(type(self).hardware(cards, touches), journal, cdi)
        self.node = type(self).node_of(cards)
        identity = Identity(DRIVER, POOL, f"boot-{cards.boot}")
        self.driver = GpuDriver(identity, self.node, journal, cdi, executor, lanes)
        self.driver.holder_patience_s = 0.0  # no loop runs here that could wait
        self.driver.afterwards = lambda call: call()

    def prepare(self, n: int, *devices: str) -> None:
        drive(self.driver.prepare(claim(n, *devices)))

    def unprepare(self, n: int) -> None:
        drive(self.driver.unprepare(ref(n)))


class CutWorld:
    """Cards of one board, and the driver's lives on them."""

    def __init__(self, board: str, count: int = 2) -> None:
        gpus = tuple(cuttable(n, board) for n in range(count))
        self.cards = Cards(board, gpus)
        self.cards.reboot()
        self.names = tuple(self.cards.devices)

    def start(self, touches: Touches | None = None) -> Process:
        return Process(self.cards, touches or Touches())

    def recover(self, touches: Touches | None = None) -> None:
        report = self.start(touches).driver.recover()
        assert Outcome.UNREPAIRED not in {each.outcome for each in report}, [*map(str, report)]

    def make_by_hand(self, gpu: GpuUuid, profile_id: int, placement: Placement) -> None:
        """What an administrator may do; where claims are prepared nobody does."""
        held = [p for r in self.cards.records.values() for p in r.places if p[0] == gpu]
        if any(overlap(placement, place) for _, place in held) or not self.cards.modes[gpu]:
            return
        if self.cards.room(gpu, profile_id, placement.start):
            new = Instance(profile_id, placement, compute=True, strange=True)
            self.cards.there[gpu].append(new)

    # Invariants --------------------------------------------------------------------------

    def strange(self) -> list[tuple[GpuUuid, Placement]]:
        there = self.cards.there.items()
        return [(gpu, each.placement) for gpu, found in there for each in found if each.strange]

    def check(self, bystanders: Iterable[Record] = ()) -> None:
        """Journal, hardware and CDI folder say the same; nothing overlaps."""
        records = self.cards.records
        assert all(record.state is ClaimState.COMPLETED for record in records.values())
        assert set(self.cards.cdi) == set(records)
        wanted = sorted(
            (step.gpu, step.placement, step.profile_id, True)
            for record in records.values()
            for step in record.steps
            if isinstance(step, CreateMigDevice)
        )
        found = sorted(
            (gpu, each.placement, each.profile_id, each.compute)
            for gpu, there in self.cards.there.items()
            for each in there
            if not each.strange
        )
        assert found == wanted
        for record in records.values():
            for step in record.steps:
                if isinstance(step, EnsureMigMode):
                    assert self.cards.modes[step.gpu] == step.on
        self.check_places()
        for bystander in bystanders:
            again = replace(bystander, boot_id=records[bystander.claim.uid].boot_id)
            assert records[bystander.claim.uid] == again

    def check_places(self) -> None:
        records = self.cards.records
        places = [place for record in records.values() for place in record.places]
        for i, (gpu, place) in enumerate(places):
            for other_gpu, other in places[i + 1 :]:
                assert gpu != other_gpu or not overlap(place, other)


def uid(n: int) -> str:
    return f"{n:08x}-0000-4000-8000-000000000000"


def ref(n: int) -> ClaimRef:
    return ClaimRef("team", f"claim-{n}", uid(n))


def claim(n: int, *devices: str) -> Any:
    results = [
        {"driver": DRIVER, "pool": POOL, "device": device, "request": "gpu"} for device in devices
    ]
    return {
        "metadata": {"namespace": "team", "name": f"claim-{n}", "uid": uid(n)},
        "status": {"allocation": {"devices": {"results": results}}},
    }


__all__ = ["Crash", "CutWorld", "Process", "Touches", "claim", "ref", "uid"]
