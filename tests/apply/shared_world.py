"""A node whose cards claims use whole, shared and in partitions, under the driver's own prepare
and recovery, with the scheduler's stand-in handing the claims out. All of it in memory."""

import random
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from api.policy import NodePolicy
from driver.model.claims import ClaimState, Record
from driver.model.devices import Device, MpsGpu
from driver.model.gpu import ComputeMode, Gpu, Inventory
from driver.model.ids import ClaimUid, DeviceName, GpuUuid
from driver.model.mig import Place, overlap
from driver.model.shares import SharingFacts
from driver.model.steps import (
    EnsureMigMode,
    LimitPod,
    MpsNamespace,
    ServeMps,
    SetComputeMode,
    SetTimeSlice,
    Step,
    TimeSliceInterval,
)
from driver.model.view import MpsFolders, NodeView
from driver.plan.allocatable import allocatable, node_devices
from driver.plan.layout import EVERYTHING
from driver.plan.resources import driver_resources
from driver.pods import pods_of
from kubeletplugin.plan_publish import Identity, plan_publish
from kubeletplugin.testing.allocator import AllocationError, State, choose
from kubeletplugin.testing.allocator_capacity import counters_left, taken
from tests.apply.cut_world import Cards, CutWorld, Hardware, Node, Process, Touches, drive, uid
from tests.plan.builders import DRIVER, POOL, cuttable, inventory
from tests.plan.shared import GIB, NEW_DRIVER, policy

CLASSES: Mapping[str, Any] = {"any": {"spec": {}}}
TURNS = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "TimeSliceConfig", "interval": "Long"}


@dataclass
class SharedCards(Cards):
    policy: NodePolicy = field(default_factory=policy)
    facts: SharingFacts = field(default_factory=SharingFacts)
    compute_modes: dict[GpuUuid, ComputeMode] = field(default_factory=dict)
    daemons: dict[GpuUuid, tuple[ServeMps, int]] = field(default_factory=dict)  # and its start
    namespaces: dict[GpuUuid, dict[str, MpsNamespace]] = field(default_factory=dict)
    intervals: dict[GpuUuid, TimeSliceInterval] = field(default_factory=dict)
    starts: int = 0
    pods: set[str] = field(default_factory=set)  # that have a cgroup
    limits: dict[tuple[GpuUuid, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.devices = _devices(self.gpus, self.policy, self.facts)

    def reboot(self) -> None:
        super().reboot()
        for effects in (self.compute_modes, self.daemons, self.namespaces, self.intervals):
            effects.clear()
        self.limits.clear()
        self.pods.clear()


class SharedHardware(Hardware):
    """Each effect is one touch. What must not happen to those who use a card is asserted."""

    cards: SharedCards

    def do(self, step: Step) -> None:
        if self.present(step):
            return
        match step:
            case SetComputeMode(gpu, mode):
                self._touch("mode", lambda: self.cards.compute_modes.update({gpu: mode}))
            case ServeMps(gpu):
                assert gpu not in self.cards.daemons, "a daemon that is in use is changed"
                assert gpu in self.cards.compute_modes
                self._touch("daemon", lambda: self._start(step))
            case MpsNamespace(gpu, name):
                assert gpu in self.cards.daemons
                there = self.cards.namespaces.setdefault(gpu, {})
                self._touch("namespace", lambda: there.update({name: step}))
            case LimitPod(gpu, pod, memory):
                self._touch("limit", lambda: self.cards.limits.update({(gpu, pod): memory}))
            case SetTimeSlice(gpu, interval):
                self._touch("interval", lambda: self.cards.intervals.update({gpu: interval}))
            case _:
                assert step.gpu not in self.cards.daemons
                super().do(step)

    def undo(self, step: Step) -> None:
        match step:
            case SetComputeMode(gpu):
                assert gpu not in self.cards.daemons, "the daemon still runs"
                self._touch("mode back", lambda: self.cards.compute_modes.pop(gpu, None))
            case ServeMps(gpu):
                assert not self.cards.namespaces.get(gpu), "a namespace is still there"
                self._touch("daemon ends", lambda: self.cards.daemons.pop(gpu, None))
            case MpsNamespace(gpu, name):
                there = self.cards.namespaces.get(gpu, {})
                self._touch("namespace ends", lambda: there.pop(name, None))
            case LimitPod(gpu, pod):
                self._touch("limit ends", lambda: self.cards.limits.pop((gpu, pod), None))
            case SetTimeSlice(gpu):
                self._touch("interval back", lambda: self.cards.intervals.pop(gpu, None))
            case _:
                super().undo(step)

    def present(self, step: Step) -> bool:
        match step:
            case SetComputeMode(gpu, mode):
                return self.cards.compute_modes.get(gpu) is mode
            case ServeMps(gpu):
                return self.cards.daemons.get(gpu, (None, 0))[0] == step
            case MpsNamespace(gpu, name):
                return self.cards.namespaces.get(gpu, {}).get(name) == step
            case LimitPod(gpu, pod, memory):
                return pod not in self.cards.pods or self.cards.limits.get((gpu, pod)) == memory
            case SetTimeSlice(gpu, interval):
                return self.cards.intervals.get(gpu) is interval
            case _:
                return super().present(step)

    def has_cgroup(self, pod: str) -> bool:
        return pod in self.cards.pods

    def _start(self, step: ServeMps) -> None:
        self.cards.starts += 1
        self.cards.daemons[step.gpu] = step, self.cards.starts

    def _touch(self, what: str, act: Any) -> None:
        self.touches.touch(what, act)


class SharedNode(Node):
    _cards: SharedCards

    @property
    def served(self) -> Set[ServeMps]:
        return {step for step, _ in self._cards.daemons.values()}

    def view(self, gpus: Iterable[GpuUuid], places: Iterable[Place] = ()) -> NodeView:
        made = super().view(gpus, places)
        folders = {gpu: MpsFolders(f"/run/mps/{gpu[4:12]}") for gpu in self._cards.daemons}
        return NodeView(made.driver_name, made.gpus, made.nodes, made.partitions, folders)


class SharedProcess(Process):
    hardware = SharedHardware
    node_of = SharedNode

    def __init__(self, cards: SharedCards, touches: Touches) -> None:
        super().__init__(cards, touches)
        self.records = cards.records

    def prepare_claim(self, raw: Any) -> None:
        drive(self.driver.prepare(raw))

    def limit_pods(self, raw: Any) -> None:
        """As upkeep does for every claim."""
        record = self.records.get(ClaimUid(raw["metadata"]["uid"]))
        if record is not None and record.state is ClaimState.COMPLETED:
            self.driver.limit(record, pods_of(raw).keys())


class SharedWorld(CutWorld):
    """The node, and the API server's claims on it by number."""

    cards: SharedCards

    def __init__(self, board: str, facts: SharingFacts, count: int = 2, **rule: str) -> None:
        gpus = tuple(cuttable(n, board) for n in range(count))
        self.cards = SharedCards(board, gpus, policy=policy(**rule), facts=facts)
        self.cards.reboot()
        self.names = tuple(self.cards.devices)
        self.claims: dict[int, Any] = {}
        self._free = _published(self.cards.gpus, self.cards.policy, facts)
        self._devices = {each.id: each.device for each in self._free.candidates}
        self._before: dict[GpuUuid, tuple[int, set[ClaimUid]]] = {}

    def start(self, touches: Touches | None = None) -> SharedProcess:
        return SharedProcess(self.cards, touches or Touches())

    def allocate(self, n: int, *requests: Mapping[str, Any], config: Any = ()) -> Any:
        """Claim ``n`` as the scheduler leaves it, or None where it fits nowhere."""
        devices = {"requests": list(requests), "config": list(config)}
        metadata = {"namespace": "team", "name": f"claim-{n}", "uid": uid(n)}
        claim = {"metadata": metadata, "spec": {"devices": devices}}
        held = taken(self.claims.values())
        left = counters_left(self._free.left, self._devices, held)
        state = State(self._free.candidates, held, left)
        try:
            allocation = choose(claim, CLASSES, state)
        except AllocationError:
            return None
        pods = [{"resource": "pods", "name": pod(k), "uid": pod(k)} for k in pods_for(n)]
        self.claims[n] = claim | {"status": {"allocation": allocation, "reservedFor": pods}}
        self.come(n)
        return self.claims[n]

    def come(self, n: int) -> None:
        """The kubelet starts the pods of claim ``n``: their cgroups are there."""
        self.cards.pods |= pods_of(self.claims[n]).keys()

    def go(self, k: int) -> None:
        """A pod's cgroup is removed, and with it its limits."""
        self.cards.pods.discard(pod(k))
        for gpu, name in list(self.cards.limits):
            if name == pod(k):
                del self.cards.limits[gpu, name]

    # Invariants --------------------------------------------------------------------------

    def check(self, bystanders: Iterable[Record] = ()) -> None:
        super().check(bystanders)
        self.check_effects()
        self.check_daemons()

    def check_places(self) -> None:
        """One shape a card; shares fit."""
        shares: dict[GpuUuid, list[Any]] = {}
        held = [each for record in self.cards.records.values() for each in record.held]
        for each in held:
            if each.share is not None:
                shares.setdefault(each.gpu, []).append(each)
        for a, b in combinations(held, 2):
            if a.gpu == b.gpu and not (a.share and b.share and a.type == b.type):
                assert not overlap(a.placement, b.placement), (a, b)
        for found in shares.values():
            device = self.cards.devices[found[0].allocation.device]
            assert len(found) <= device.shares  # type: ignore[union-attr]
            if isinstance(device, MpsGpu):
                assert sum(each.share.memory for each in found) <= device.memory
                assert sum(each.share.compute_percent for each in found) <= 100

    def check_effects(self) -> None:
        """The node has what the records say, and nothing else."""
        cards = self.cards
        steps = {step for record in cards.records.values() for step in record.steps}
        there: set[Step] = {SetComputeMode(gpu, mode) for gpu, mode in cards.compute_modes.items()}
        there |= {daemon for daemon, _ in cards.daemons.values()}
        there |= {each for found in cards.namespaces.values() for each in found.values()}
        there |= {SetTimeSlice(gpu, each) for gpu, each in cards.intervals.items()}
        kinds = (SetComputeMode, ServeMps, MpsNamespace, SetTimeSlice)
        assert there == {step for step in steps if isinstance(step, kinds)}
        wanted: dict[tuple[GpuUuid, str], int] = {}
        for record in cards.records.values():
            for step in record.steps:
                if isinstance(step, LimitPod) and step.pod in cards.pods:
                    key = step.gpu, step.pod
                    wanted[key] = wanted.get(key, 0) + step.memory
        assert cards.limits == wanted
        modes = {step.gpu: step.on for step in steps if isinstance(step, EnsureMigMode)}
        assert all(not modes.get(gpu) for gpu in cards.daemons)

    def check_daemons(self) -> None:
        """A daemon that a claim used before and uses still was not started anew."""
        done = [r for r in self.cards.records.values() if r.state is ClaimState.COMPLETED]
        now = {
            gpu: (start, {record.claim.uid for record in done if gpu in record.gpus})
            for gpu, (_, start) in self.cards.daemons.items()
        }
        for gpu, (start, users) in self._before.items():
            if gpu in now and users & now[gpu][1]:
                assert now[gpu][0] == start, "a daemon was restarted under its clients"
        self._before = now

    def leaving(self, n: int) -> None:
        """Claim ``n`` has no clients any more: a daemon may end under it, and come back."""
        for _, users in self._before.values():
            users.discard(ClaimUid(uid(n)))

    def forget_daemons(self) -> None:
        """After a reboot all are new."""
        self._before = {}


def pod(k: int) -> str:
    return f"{k:08x}-1111-4000-8000-000000000000"


def pods_for(n: int) -> tuple[int, int]:
    """Claims share pods: claims 1 and 9 have the same two, claim 2 one of them."""
    return n % 4, (n + 1) % 4


_PUBLISHED: dict[Any, State] = {}
_DEVICES: dict[Any, dict[DeviceName, Device]] = {}


def _published(gpus: tuple[Gpu, ...], rule: NodePolicy, facts: SharingFacts) -> State:
    """Made once for all worlds that are alike."""
    key = gpus[0].product, rule.gpus, facts
    if key not in _PUBLISHED:
        node = _node(gpus, facts)
        found = allocatable(node, rule, sharing=facts)
        pool = driver_resources(found, node, {}, pool=POOL, features=EVERYTHING)
        objects = list(plan_publish(pool, [], Identity(DRIVER, POOL)).create)
        _PUBLISHED[key] = State.of(objects, [])
    return _PUBLISHED[key]


def _node(gpus: tuple[Gpu, ...], facts: SharingFacts) -> Inventory:
    """With a driver that has what the control program has."""
    found = inventory(*gpus)
    newest = facts.mps is not None and 3 in facts.mps.protocols
    return replace(found, driver_version=NEW_DRIVER) if newest else found


def _devices(
    gpus: tuple[Gpu, ...], rule: NodePolicy, facts: SharingFacts
) -> dict[DeviceName, Device]:
    key = gpus[0].product, rule.gpus, facts
    if key not in _DEVICES:
        known = node_devices(_node(gpus, facts), rule, sharing=facts)
        _DEVICES[key] = {each.name: each for each in known}
    return _DEVICES[key]


def request(rng: random.Random, type_: str, name: str = "r", profile: str = "") -> dict[str, Any]:
    """A request for one device of a type, with random numbers where it has any."""
    domain = f"device.attributes['{DRIVER}']"
    expression = f"{domain}.type == '{type_}'"
    if profile:
        expression += f" && {domain}.profile == '{profile}'"
    wanted: dict[str, Any] = {}
    if type_ == "mps":
        sizes = ("1", "1Mi", "9Gi", "10.5Gi", f"{rng.randint(1, 90 * GIB)}", None)
        percents = ("0", "25", "100", "101", f"{rng.randint(0, 100)}", None)
        wanted = {"memory": rng.choice(sizes), "computePercent": rng.choice(percents)}
    exactly = {
        "deviceClassName": "any",
        "selectors": [{"cel": {"expression": expression}}],
        "capacity": {"requests": {key: value for key, value in wanted.items() if value}},
    }
    return {"name": name, "exactly": exactly}


def long_turns(*requests: str) -> dict[str, Any]:
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": TURNS}}
