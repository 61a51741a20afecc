"""The cards of this node: what there is, what is wrong with it, what is published of it."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

from api.policy import NodePolicy
from driver.common import CommonParts
from driver.errors import HardwareError, StateError
from driver.hw.libraries import DriverFiles
from driver.model.devices import Device, MigPartition, MpsGpu, WholeGpu
from driver.model.gpu import DeviceNode, Gpu, GpuProcess, Inventory
from driver.model.health import CardHealth
from driver.model.ids import ClaimUid, DeviceName, GpuUuid
from driver.model.mig import MigDevice, MigInstance, Place, Placement, overlap
from driver.model.readings import CardReading, XidEvent
from driver.model.shares import SharingFacts
from driver.model.steps import ServeMps
from driver.model.usage import ProcessUse
from driver.model.view import MpsFolders, NodeView
from driver.plan.allocatable import allocatable, node_devices
from driver.plan.counters import uncovered
from driver.plan.health import describe, next_health, taints
from driver.plan.layout import EVERYTHING, is_kept_out, keep_shared
from driver.plan.partitions import rule_of
from driver.plan.prepare import Foreign
from driver.plan.resources import Taint, driver_resources
from driver.plan.topology import pci_order
from driver.remembering import Versions, from_values, to_values
from driver.sharing import Seen, Sharing
from driver.state.known import Known
from driver.strangers import Strangers
from kubeletplugin.contract import DesiredPool, DeviceHealth

log = logging.getLogger(__name__)

MPS_BACK = "MpsDaemonBack"  # Event

_MPS_SERVER = "nvidia-cuda-mps"  # "-control" and "-server", cut to 15 bytes


class Hardware(Protocol):
    """The part of ``driver.hw.card.Cards`` that is read here. Methods block."""

    def discover(self) -> Inventory: ...
    def nodes(self, gpu: GpuUuid) -> tuple[DeviceNode, ...]: ...
    def control_nodes(self) -> tuple[DeviceNode, ...]: ...
    def files(self) -> DriverFiles: ...
    def toolkit_edits(self, files: DriverFiles) -> Mapping[str, Any] | None: ...
    def processes(
        self, gpu: GpuUuid, placement: Placement | None = None
    ) -> tuple[GpuProcess, ...]: ...
    def instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]: ...
    def partition(self, gpu: GpuUuid, placement: Placement) -> MigDevice | None: ...
    def uses(self, gpu: GpuUuid) -> tuple[ProcessUse, ...]: ...
    def mps_folders(self, gpus: Iterable[GpuUuid]) -> dict[GpuUuid, MpsFolders]: ...
    def time_slice_problem(self, gpu: GpuUuid) -> str: ...
    def pod_limit_problem(self, gpus: Iterable[GpuUuid]) -> str | None: ...
    @property
    def known_folders(self) -> dict[GpuUuid, MpsFolders]: ...


@dataclass(frozen=True, slots=True)
class Change:
    """A card got worse or better; for Events and the log."""

    gpu: GpuUuid
    text: str  # empty: all is well again
    reason: str = "GPUUnhealthy"  # of the Event
    mended: str = "GPUHealthy"  # of the Event that all is well again
    again: str = "is healthy again"


class NodeCards:
    """One value of the world at a time, replaced as a whole; any thread may read it.

    Only one task at a time calls ``refresh`` and ``apply``.
    """

    def __init__(
        self,
        hardware: Hardware,
        known: Known,
        policy: NodePolicy,
        *,
        driver: str,
        pool: str,
        boot_id: str,
    ) -> None:
        self.policy = policy
        self.inventory = Inventory("", (0, 0), ())
        self.devices: Mapping[DeviceName, Device] = {}
        self.blocked = False  # a damaged record may hold any card that no record names
        self._hardware = hardware
        self._known = known
        self._driver, self._pool, self._boot_id = driver, pool, boot_id
        self._gpus: dict[GpuUuid, Gpu] = {}
        self._held: Set[GpuUuid] = frozenset()  # at the last look
        self._health: dict[GpuUuid, CardHealth] = {}
        self._versions: Versions = ("", (0, 0))  # as last enumerated
        self._strangers = Strangers(hardware)
        self._uncounted: dict[GpuUuid, tuple[str, ...]] = {}
        self._common = CommonParts(hardware)
        self.shares = Sharing(hardware.known_folders)
        self._down = ""  # why NVML as a whole does not answer

    @property
    def gpus(self) -> Mapping[GpuUuid, Gpu]:
        """Every card known, lost ones included."""
        return self._gpus

    @property
    def sharing(self) -> SharingFacts:
        """What the node has for sharing cards, as last told."""
        return self.shares.facts

    @property
    def served(self) -> Set[ServeMps]:
        """The MPS daemons that run, as last told, by the step that starts them."""
        return self.shares.served()

    @property
    def health(self) -> Mapping[GpuUuid, CardHealth]:
        return self._health

    # Learning ----------------------------------------------------------------------------

    def load(self) -> None:
        """Take up what an earlier process knew; health of another boot starts anew."""
        values = self._known.load()
        found = from_values(values, self._boot_id)
        self._versions = found.versions
        self._gpus, self._health = found.gpus, found.health
        self._strangers.from_data(values.get("adopted"))
        self.shares.from_data(values.get("sharing", {}))

    def refresh(self, held: Set[GpuUuid], places: Callable[[], Set[Place]]) -> tuple[Change, ...]:
        """Enumerate the cards anew; returns what is strange on them. Blocks.

        ``places`` tells what records hold now. A card that is gone while others cannot be read,
        or that a claim holds, stays known (its health says so); any other one is forgotten.

        Raises:
            HardwareError: NVML as a whole does not answer; what was known stays.
        """
        found = self._hardware.discover()
        self._down = ""
        there = {gpu.uuid: gpu for gpu in found.gpus}
        missing = {
            uuid: gpu
            for uuid, gpu in self._gpus.items()
            if uuid not in there and (found.unreadable or uuid in held)
        }
        self._versions = (found.driver_version, found.cuda_driver_version)
        strange = self._strangers.look(there.values(), self.policy, places)
        self._held = held
        self.shares.look_at_pods(self._hardware.pod_limit_problem, found)
        self._take(there | missing, found)
        self._health = {
            uuid: self._health.get(uuid, CardHealth(lost=uuid in missing)) for uuid in self._gpus
        }
        return tuple(Change(uuid, _strange(each), "StrangePartition") for uuid, each in strange)

    def all_lost(self, problem: str) -> tuple[Change, ...]:
        """NVML as a whole does not answer: every card known is lost until it does."""
        self._down = problem
        self._take(self._gpus, Inventory(*self._versions, gpus=()))
        return self.apply(CardReading(gpu=uuid, lost=True, problem=problem) for uuid in self._gpus)

    def _take(self, gpus: Mapping[GpuUuid, Gpu], found: Inventory) -> None:
        ordered = sorted(gpus.values(), key=lambda gpu: pci_order(gpu.pci))
        self.inventory = replace(found, gpus=tuple(ordered))
        self._gpus = {gpu.uuid: gpu for gpu in ordered}
        devices = node_devices(self.inventory, self.policy, self._strangers.adopted, self.sharing)
        kept = keep_shared(devices, self.devices, self._held)
        self.devices = {each.name: each for each in kept}
        for gpu in ordered:
            left_out = uncovered(gpu)
            if left_out and self._uncounted.get(gpu.uuid) != left_out:
                self._uncounted[gpu.uuid] = left_out
                log.warning(
                    "card %s: its profiles together have more of %s than its largest one: not "
                    "counted in ResourceSlices",
                    gpu.uuid,
                    ", ".join(left_out),
                )

    def apply(self, seen: Iterable[CardReading | XidEvent]) -> tuple[Change, ...]:
        """Take in readings and events; returns the cards whose state is told differently now."""
        before = dict(self._health)
        after = dict(before)
        for one in seen:
            if one.gpu is not None and one.gpu in after:
                after[one.gpu] = next_health(after[one.gpu], one, self.policy)
        self._health = after
        return tuple(
            Change(uuid, describe(after[uuid]))
            for uuid in after
            if describe(before[uuid]) != describe(after[uuid])
        )

    def take_sharing(self, seen: Seen, held: Set[GpuUuid]) -> tuple[Change, ...]:
        """Take in a look at the MPS supervisor; returns the cards whose daemon died or is back."""
        facts, before = self.shares.facts, {gpu: self.shares.fault(gpu) for gpu in self._gpus}
        self.shares.take(seen)
        if self.shares.facts != facts:
            self._held = held
            self._take(self._gpus, self.inventory)
        return tuple(
            Change(gpu, now, "MpsDaemonDown", MPS_BACK, "has its MPS control daemon back")
            for gpu, was in before.items()
            if bool(now := self.shares.fault(gpu)) != bool(was)
        )

    @property
    def takes_turns(self) -> bool:
        """Whether the policy lets any card be used in turns."""
        return any("timeslice" in rule_of(gpu, self.policy).modes for gpu in self._gpus.values())

    def look_at_time_slices(self, held: Set[GpuUuid]) -> str:
        """Find out whether time slices can be set; the reason where they cannot. Blocks.

        One card stands for all: what is missing is the program, or what it can do.
        """
        gpu = next((gpu for gpu in self._gpus if not self._health[gpu].lost), None)
        problem = "" if gpu is None else self._hardware.time_slice_problem(gpu)
        facts = self.shares.facts
        self.shares.set_intervals(gpu is not None and not problem)
        if self.shares.facts != facts:
            self._held = held
            self._take(self._gpus, self.inventory)
        return problem

    def save(self) -> None:
        """Keep what is known over a restart; writes only what differs. Blocks."""
        values = to_values(self._versions, self.inventory.gpus, self._health, self._boot_id)
        more = {"adopted": self._strangers.to_data(), "sharing": self.shares.to_data()}
        values |= {key: value for key, value in more.items() if value}
        try:
            self._known.save(values)
        except StateError as error:
            log.warning("health of the cards is not kept over a restart: %s", error)

    # Telling -----------------------------------------------------------------------------

    def pool(self, held: Set[DeviceName], features: Set[str]) -> DesiredPool:
        """What to publish. A device in ``held`` stays, whatever the policy or the card says."""
        offered = {each.name for each in self._offered(features)}
        allocated = [self.devices[name] for name in held if name in self.devices]
        busy = {device.gpu.uuid for device in allocated}
        published: list[Device] = []
        found: dict[DeviceName, Sequence[Taint]] = {}
        for device in self.devices.values():
            excluded = device.name not in offered or is_kept_out(device, allocated, features)
            if not excluded or device.name in held:
                published.append(device)
                found[device.name] = self._taints(device, busy, held, excluded)
        return driver_resources(
            published, self.inventory, found, pool=self._pool, features=features, held=held
        )

    def _taints(
        self, device: Device, busy: Set[GpuUuid], held: Set[DeviceName], excluded: bool
    ) -> Sequence[Taint]:
        """At most four: what is wrong with the card, then what is with this device."""
        gpu = device.gpu
        found = taints(self._health[gpu.uuid], self.policy, self._driver)
        if excluded:
            return [*found[:3], self._taint("policy", "excluded")]
        if self.blocked and gpu.uuid not in busy:
            return [*found[:3], self._taint("record", "damaged")]
        if gpu.mig_mode is not None and gpu.mig_mode.current != gpu.mig_mode.pending:
            return [*found[:3], self._taint("migMode", "resetRequired")]
        if device.name not in held and self._is_blocked_by_stranger(device):
            return [*found[:3], self._taint("partition", "strange")]
        if isinstance(device, MpsGpu) and (why := self._mps_trouble(gpu.uuid)):
            return [*found[:3], self._taint("mps", why)]
        return found

    def _mps_trouble(self, gpu: GpuUuid) -> str:
        """As the value of a taint; empty where shares can be prepared."""
        if self.shares.away:
            return "supervisorAway"
        return "daemonDown" if self.shares.fault(gpu) else ""

    def _offered(self, features: Set[str]) -> tuple[Device, ...]:
        return allocatable(
            self.inventory,
            self.policy,
            self._strangers.adopted,
            features=features,
            sharing=self.sharing,
        )

    def _is_blocked_by_stranger(self, device: Device) -> bool:
        place = device.placement if isinstance(device, MigPartition) else None
        if isinstance(device, MigPartition) and device.adopted:
            return False
        strange = self._strangers.strange.get(device.gpu.uuid, ())
        return any(overlap(place, each.placement) for each in strange)

    def device_health(self, held: Set[DeviceName] = frozenset()) -> tuple[DeviceHealth, ...]:
        """The list for the kubelet's health stream: whole cards, and what else is offered or
        ``held``. A card's fault reaches all of its devices."""
        offered = {each.name for each in self._offered(EVERYTHING)}
        return tuple(
            self._health_of(device)
            for device in self.devices.values()
            if isinstance(device, WholeGpu) or device.name in offered or device.name in held
        )

    def _health_of(self, device: Device) -> DeviceHealth:
        health = self._health[device.gpu.uuid]
        fault = self.shares.fault(device.gpu.uuid) if isinstance(device, MpsGpu) else ""
        told = "; ".join(filter(None, [describe(health), fault]))
        return DeviceHealth(self._pool, device.name, health.healthy and not fault, told)

    def view(self, gpus: Iterable[GpuUuid], places: Iterable[Place] = ()) -> NodeView:
        """The node as a container of these cards and partitions will see it. Blocks.

        Raises:
            HardwareError: a card is lost, or a device node or the driver's files are missing.
        """
        try:
            common = self._common.take()
        except HardwareError as error:
            if not self._down:
                raise
            # Each call's own text is of no help to the pod's owner: "not initialised".
            raise HardwareError("the node's cards cannot be used", self._down) from error
        wanted = tuple(gpus)
        return NodeView(
            driver_name=self._driver,
            gpus=self._gpus,
            nodes={uuid: common.nodes.get(uuid) or self._hardware.nodes(uuid) for uuid in wanted},
            partitions={
                (uuid, place): device
                for uuid, place in places
                if place is not None
                and (device := self._hardware.partition(uuid, place)) is not None
            },
            common=common.edits,
            mps=self._hardware.mps_folders(wanted),
        )

    def look_ahead(self) -> None:
        """Look at what the next ``view`` needs, before it is known of which cards. Blocks."""
        self._common.look_ahead(self._gpus)

    def looked_ahead(self, gpus: Iterable[GpuUuid]) -> bool:
        """Whether a ``view`` of these whole cards would not block."""
        ahead = self._common.ahead
        return ahead is not None and ahead.nodes.keys() >= set(gpus)

    def processes(self, gpu: GpuUuid, at: Placement | None = None) -> tuple[GpuProcess, ...]:
        return self._hardware.processes(gpu, at)

    def uses(self, gpu: GpuUuid) -> tuple[ProcessUse, ...]:
        """What each process uses of the card. Blocks."""
        return self._hardware.uses(gpu)

    def strangers(self, gpu: GpuUuid) -> tuple[GpuProcess, ...]:
        """Processes on a card that no claim holds; ending MPS servers are none. Blocks."""
        return self.users(gpu, {})

    def users(self, gpu: GpuUuid, pods: Mapping[ClaimUid, Set[str]]) -> tuple[GpuProcess, ...]:
        """Processes on a card, each once for every claim whose ``pods`` it is in; MPS servers
        aside, which are nobody's. Blocks."""
        found: list[GpuProcess] = []
        for each in self._hardware.uses(gpu):
            if not each.name.startswith(_MPS_SERVER):
                process = GpuProcess(each.pid, each.memory, name=each.name)
                owners = [uid for uid, some in pods.items() if each.pod in some]
                found += [replace(process, claim=uid) for uid in owners] or [process]
        return tuple(found)

    def evicts(self, gpu: GpuUuid) -> bool:
        """Whether pods that use more memory of the card than they have are evicted."""
        card = self._gpus.get(gpu)
        return card is not None and rule_of(card, self.policy).sharing.eviction == "overMemory"

    def foreign(self, gpu: GpuUuid, ours: Set[Place]) -> tuple[Foreign, ...]:
        """Instances on the card now that are not among ``ours``. Blocks."""
        return tuple(
            Foreign(gpu, each)
            for each in self._hardware.instances(gpu)
            if (gpu, each.placement) not in ours
        )

    def _taint(self, key: str, value: str) -> dict[str, str]:
        return {"key": f"{self._driver}/{key}", "value": value, "effect": "NoSchedule"}


def _strange(instance: MigInstance) -> str:
    return (
        f"GPU instance {instance.id} at {instance.placement} was made by another program: it is "
        "left alone, and devices that overlap it are tainted"
    )
