"""What can change on a simulated node, as values, and its JSON form.

Only what differs from a fresh card is stored, so a node of 512 idle cards has a small file.
"""

import json
import uuid
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

Library = Literal["ok", "missing", "not_loaded"]
Smi = Literal["ok", "missing", "fails", "old", "unsupported", "silent"]
ProcessKind = Literal["compute", "graphics", "mps"]
MigUuids = Literal["stable", "fresh"]
ResetPolicy = Literal["auto", "blocked", "vm"]

FORMAT = 1
MAX_EVENTS = 256  # kept for event sets that have not read them yet

_DERIVED = {"derived": True}


@dataclass(slots=True)
class Process:
    """A process with a context on a card. ``memory`` in bytes, None: not available. ``busy`` in
    percent of the card's multiprocessors."""

    pid: int
    memory: int | None = None
    kind: str = "compute"
    gpu_instance: int = 0xFFFFFFFF  # and compute instance: where in a card in MIG mode
    compute_instance: int = 0xFFFFFFFF
    busy: int = 0


@dataclass(slots=True)
class ComputeInstance:
    """A compute instance; its profile's id equals its enum. Placement in compute slices."""

    id: int
    profile_id: int
    start: int
    size: int
    index: int  # of the MIG device on its card
    uuid: str  # of the MIG device


@dataclass(slots=True)
class GpuInstance:
    """A GPU instance (partition) of a card. Placement in memory slices."""

    id: int
    profile_id: int
    start: int
    size: int
    compute: list[ComputeInstance] = field(default_factory=list)

    def find(self, compute_instance: int) -> ComputeInstance | None:
        """The compute instance with this id."""
        return next((c for c in self.compute if c.id == compute_instance), None)


@dataclass(slots=True)
class MemoryLimit:
    """What the processes of a cgroup may have of a card's memory together, in bytes. The inode
    tells a folder from a later one of the same name: with its cgroup a limit is gone."""

    path: str
    inode: int
    soft: int
    hard: int


@dataclass(slots=True)
class GpuState:
    """What changes on one card. ECC counts without ``_ever`` end at a reboot."""

    minor: int | None = None  # None: equal to the index
    lost: bool = False
    recovery_action: int = 0  # NVML_GPU_RECOVERY_ACTION_*
    compute_mode: int = 0
    time_slice: int = 0  # 0 default, 1 short, 2 medium, 3 long
    mig_current: bool = False
    mig_pending: bool = False
    mig_reset: str = "auto"  # what NVML's own reset attempt meets: auto, blocked, vm
    processes: list[Process] = field(default_factory=list)
    instances: list[GpuInstance] = field(default_factory=list)
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    ecc_corrected_ever: int = 0
    ecc_uncorrected_ever: int = 0
    remapped_corrected: int = 0
    remapped_uncorrected: int = 0
    remapped_pending: bool = False
    remapped_failure: bool = False
    links_down: list[int] = field(default_factory=list)
    memory_limits: list[MemoryLimit] = field(default_factory=list)

    def find(self, gpu_instance: int) -> GpuInstance | None:
        """The GPU instance with this id."""
        return next((i for i in self.instances if i.id == gpu_instance), None)


@dataclass(slots=True)
class Fault:
    """An error that a call answers instead of doing its work."""

    symbols: list[str]  # C symbols
    code: int
    count: int | None = 1  # None: until cleared
    skip: int = 0  # calls that still go well before it
    gpu: int | None = None  # index; None: whichever card


class Event(NamedTuple):
    """A queued NVML event. A tuple, so that hundreds of them are stored and read quickly."""

    seq: int
    gpu: int
    type: int
    data: int
    gpu_instance: int = 0xFFFFFFFF
    compute_instance: int = 0xFFFFFFFF


@dataclass(slots=True)
class World:
    """The whole node. ``gpus`` holds only cards that differ from a fresh one."""

    profile: str
    count: int
    seed: int
    fabric: bool
    driver_version: str
    library: str = "ok"
    privileged: bool = True
    boots: int = 1
    mig_uuids: str = "stable"  # or "fresh": another UUID for each instance made
    mig_made: int = 0  # compute instances made so far
    smi: str = "ok"  # what nvidia-smi does, of Smi
    gpus: dict[int, GpuState] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    latency: dict[str, float] = field(default_factory=dict)  # C symbol -> seconds
    events: list[Event] = field(default_factory=list)
    event_seq: int = 0
    # worked out from the above, not stored
    driver_major: int = field(init=False, metadata=_DERIVED)  # 580 of "580.105.08"
    unusual: frozenset[str] = field(init=False, metadata=_DERIVED)  # with a fault or latency

    def __post_init__(self) -> None:
        self.driver_major = int(self.driver_version.partition(".")[0])
        named = (symbol for fault in self.faults for symbol in fault.symbols)
        self.unusual = frozenset((*named, *self.latency))

    def gpu(self, index: int) -> GpuState:
        """The state of a card, to read; use ``change`` to write."""
        return self.gpus.get(index) or _FRESH

    def change(self, index: int) -> GpuState:
        """The state of a card, to write.

        Raises:
            IndexError: there is no such card.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"simulated node has cards 0 to {self.count - 1}, asked for {index}")
        return self.gpus.setdefault(index, GpuState())

    def add_event(self, event: Event) -> None:
        """Queue an event, under the next sequence number; the oldest may make room."""
        self.event_seq += 1
        self.events = [*self.events[-(MAX_EVENTS - 1) :], event._replace(seq=self.event_seq)]


_FRESH = GpuState()


def mig_uuid(world: World, card: str, gpu_instance: int, compute_instance: int) -> str:
    """The UUID of a new MIG device: name-based, the same again or fresh by the node's policy.

    NVIDIA's guide shows the same UUID for one place, its driver says that it changes.
    """
    world.mig_made += 1
    made = world.mig_made if world.mig_uuids == "fresh" else 0
    name = f"{card}/{gpu_instance}/{compute_instance}/{made}"
    return f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, name)}"


def encode(world: World) -> bytes:
    """One JSON object; cards and fields at their defaults are left out."""
    data = {"format": FORMAT, **_changed(world)}
    data["gpus"] = {str(i): kept for i, gpu in world.gpus.items() if (kept := _changed(gpu))}
    data["faults"] = [asdict(fault) for fault in world.faults]
    return json.dumps(data, separators=(",", ":")).encode()


def decode(raw: bytes) -> World:
    """The inverse of ``encode``.

    Raises:
        ValueError: not such a file, or of another format.
    """
    data = json.loads(raw)
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ValueError(f"expected a JSON object with format {FORMAT}")
    data["gpus"] = {int(i): _gpu(gpu) for i, gpu in data.get("gpus", {}).items()}
    data["faults"] = [Fault(**fault) for fault in data.get("faults", [])]
    data["events"] = [Event(*event) for event in data.get("events", [])]
    return World(**data)


def _gpu(data: dict[str, Any]) -> GpuState:
    data["processes"] = [Process(**process) for process in data.get("processes", [])]
    data["instances"] = [_instance(instance) for instance in data.get("instances", [])]
    data["memory_limits"] = [MemoryLimit(**limit) for limit in data.get("memory_limits", [])]
    return GpuState(**data)


def _instance(data: dict[str, Any]) -> GpuInstance:
    data["compute"] = [ComputeInstance(**compute) for compute in data.get("compute", [])]
    return GpuInstance(**data)


def _changed(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not at their default, nested ones as dicts."""
    kept = {}
    for spec in fields(value):
        if spec.metadata.get("derived"):
            continue
        found = getattr(value, spec.name)
        default = spec.default
        if default is MISSING and spec.default_factory is not MISSING:
            default = spec.default_factory()
        if default is MISSING or found != default:
            kept[spec.name] = _plain(found)
    return kept


def _plain(value: Any) -> Any:
    """As dicts and lists. ``asdict`` copies deeply, which with hundreds of partitions took most
    of the time of every change to the node."""
    if isinstance(value, list):
        return [item if isinstance(item, tuple) else _plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__slots__}
    return value
