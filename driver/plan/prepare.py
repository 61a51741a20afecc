"""Decide what preparing a claim takes."""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import assert_never

from driver.errors import (
    ClaimError,
    DeviceConflictError,
    DeviceHeldError,
    InvalidConfigError,
    UnknownDeviceError,
)
from driver.model.claims import AllocatedClaim, Allocation, ClaimState, Held, Record
from driver.model.devices import (
    Device,
    MigPartition,
    MpsGpu,
    SharedGpu,
    TimeSlicedGpu,
    WholeGpu,
)
from driver.model.gpu import ComputeMode, GpuProcess
from driver.model.ids import DeviceName, GpuUuid
from driver.model.mig import MigInstance, Placement, overlap
from driver.model.shares import Share
from driver.model.steps import (
    CreateMigDevice,
    EnsureMigMode,
    LimitPod,
    MpsNamespace,
    ServeMps,
    SetComputeMode,
    SetTimeSlice,
    Step,
)
from driver.plan import shares
from driver.plan.kinds import device_type
from driver.plan.limits import CGROUP
from driver.plan.names import card_part
from driver.plan.shares import Holder
from driver.plan.standing import standing

_KNOWN_NAMES = 12  # of a node's devices, in an error's text


@dataclass(frozen=True, slots=True)
class Foreign:
    """An instance on a card that no record of ours has."""

    gpu: GpuUuid
    instance: MigInstance


@dataclass(frozen=True, slots=True)
class Around:
    """What is on the cards of a claim beside what records say.

    ``foreign``: instances on the cards of partitions that other programs made, adopted ones
    included. ``processes`` run on the cards of which the claim would have the first share.
    ``served``: the MPS daemons that run now, by the step that starts them.
    """

    foreign: Sequence[Foreign] = ()
    processes: Mapping[GpuUuid, Sequence[GpuProcess]] = field(default_factory=dict)
    served: Set[ServeMps] = frozenset()


_NOTHING = Around()


def plan_prepare(
    claim: AllocatedClaim,
    devices: Mapping[DeviceName, Device],
    records: Iterable[Record],
    boot_id: str,
    around: Around = _NOTHING,
) -> Record:
    """The record to write before the first change to the node; COMPLETED when nothing changes,
    as for a further share of a card: what it needs was done for the claims beside it.

    ``devices`` is what the node has, whether published or not; ``records`` at least those of the
    cards that the claim touches, its own earlier one does no harm. The scheduler should never
    hand out a device twice; the driver is the last line of defence (KEP-4381). Allocations with
    admin access neither conflict nor count nor change anything (KEP-5018).

    Steps come in this order: MIG mode, compute mode, MPS daemon and its namespaces, time slice.

    Raises:
        UnknownDeviceError: an allocation names a device that is not in ``devices``, or an adopted
            partition that is gone.
        DeviceConflictError: another claim, another allocation of this one, an instance or a
            process of another program holds the card or a part of it.
        InvalidConfigError: the claim's config does not fit the device.
        ClaimError: an allocation says nothing sound of its share, or limits are worth less than
            the config demands.
    """
    others = [record for record in records if record.claim.uid != claim.uid]
    planning = _Planning(claim, others, around)
    for allocation in claim.allocations:
        planning.add(allocation, _device(allocation, devices))
    steps = tuple(planning.steps)
    done = set(steps) <= standing(others, boot_id, around.served)
    state = ClaimState.COMPLETED if done else ClaimState.STARTED
    return Record(claim, tuple(planning.found), steps, state, boot_id)


_BESIDE_WEAKER = (
    "claims that share the card were prepared when pods could not be limited, and a pod that has "
    "several has one limit; it is as published when the last of them has ended"
)


def _is_weaker(other: Holder) -> bool:
    """Whether it shares a card without a limit of its pod."""
    share = other.held.share
    return share is not None and share.limits.memory != CGROUP


class _Planning:
    """One claim, allocation by allocation."""

    def __init__(self, claim: AllocatedClaim, others: Sequence[Record], around: Around) -> None:
        self.found: list[Held] = []
        self.steps: dict[Step, None] = {}  # an ordered set: equal steps are one effect
        self._claim = claim
        self._around = around
        self._holders = [
            Holder(held, record.claim)
            for record in others
            for held in record.held
            if not held.allocation.admin
        ]
        # As the daemons run now: what the policy says by now is for the next first share.
        self._serving = {
            step.gpu: step
            for record in others
            for step in record.steps
            if isinstance(step, ServeMps)
        }

    def add(self, allocation: Allocation, device: Device) -> None:
        held = self._held(allocation, device)
        self.found.append(held)
        if allocation.admin:
            return
        _check_free(device, held, self._claim, self._holders)
        _check_foreign(device, held, self._around.foreign)
        if isinstance(device, MpsGpu | TimeSlicedGpu):
            held = self._shared(allocation, device, held)
            self.found[-1] = held
        self._holders.append(Holder(held, self._claim))
        self.steps |= dict.fromkeys(self._steps(device, held))

    def _held(self, allocation: Allocation, device: Device) -> Held:
        gpu, type_ = device.gpu.uuid, device_type(device)
        match device:
            case WholeGpu():
                return Held(allocation, gpu, type_)
            case MigPartition(profile=profile, placement=placement):
                return Held(allocation, gpu, type_, placement, profile.name)
            case MpsGpu() | TimeSlicedGpu():
                if not allocation.admin and shares.is_whole(device, allocation):
                    return Held(allocation, gpu, "gpu")
                return Held(allocation, gpu, type_)
            case _:
                assert_never(device)

    def _shared(self, allocation: Allocation, device: SharedGpu, held: Held) -> Held:
        """With the share in it, unless it is all of the card."""
        if held.type == "gpu":
            shares.check_kind(device, allocation, "interval")
            return held
        self._check_processes(device)
        sharers = [other for other in self._holders if other.held.gpu == held.gpu]
        shares.check_room(device, allocation, sharers, self._claim)
        if isinstance(device, TimeSlicedGpu):
            return replace(held, share=shares.time_share(device, allocation, sharers))
        self._check_one_card(device)
        if not device.no_cgroup and any(_is_weaker(other) for other in sharers):
            device = replace(device, no_cgroup=_BESIDE_WEAKER)
        serve = self._serving.setdefault(held.gpu, device.serve)
        return replace(held, share=shares.mps_share(device, allocation, serve, self._claim))

    def _check_processes(self, device: SharedGpu) -> None:
        """Only where nobody has a share yet: later, processes of others are expected."""
        running = self._around.processes.get(device.gpu.uuid, ())
        if running and not any(other.held.gpu == device.gpu.uuid for other in self._holders):
            pids = ", ".join(_process(each) for each in running[:_KNOWN_NAMES])
            raise DeviceHeldError(  # they may be ending: it is looked at again for a while
                f"{_place(device, None)} is in use by processes that belong to no claim: {pids}; "
                "no limit would hold against them. End them, or exclude the card in the node "
                "policy"
            )

    def _check_one_card(self, device: MpsGpu) -> None:
        for other in self.found:
            if other.type == "mps" and other.share and other.gpu != device.gpu.uuid:
                raise ClaimError(
                    f"claim {self._claim} has shares of two cards, {other.allocation.device} and "
                    f"{device.name}, but a process can use the MPS daemon of one card only: ask "
                    "for them in two claims, for containers of their own, or for whole cards"
                )

    def _steps(self, device: Device, held: Held) -> tuple[Step, ...]:
        match device:
            case WholeGpu(gpu=gpu, toggle=toggle):
                _check_wishes(held.allocation)
                return _whole_steps(gpu.uuid, toggle, held.allocation)
            case MigPartition():
                return _partition_steps(device, held.allocation)
            case MpsGpu(gpu=gpu, toggle=toggle) | TimeSlicedGpu(gpu=gpu, toggle=toggle):
                if held.share is None:
                    return _whole_steps(gpu.uuid, toggle, held.allocation)
                return (*_off(gpu.uuid, toggle), *self._share_steps(held, held.share))
            case _:
                assert_never(device)

    def _share_steps(self, held: Held, share: Share) -> tuple[Step, ...]:
        if held.type == "timeslice":
            return () if share.interval is None else (SetTimeSlice(held.gpu, share.interval),)
        found: list[Step] = [
            SetComputeMode(held.gpu, ComputeMode.EXCLUSIVE_PROCESS),
            self._serving[held.gpu],
        ]
        if share.namespace is not None:
            limits = share.memory_limit, share.percent_limit
            found.append(MpsNamespace(held.gpu, share.namespace, *limits))
        return tuple(found)


def steps_to_undo(record: Record, others: Iterable[Record]) -> tuple[Step, ...]:
    """The steps of ``record``, last first, that no other claim still needs.

    ``others`` are the other records of its cards; its own among them is passed over. What counts
    is what undoing would take away: two claims that had a card set differently still share it.
    Limits of pods are always among them: what is left of one is ``limits.rest``.
    """
    needed = {
        _undone(step)
        for other in others
        if other.claim.uid != record.claim.uid
        for step in other.steps
    }
    return tuple(
        step
        for step in reversed(record.steps)
        if isinstance(step, LimitPod) or _undone(step) not in needed
    )


def _undone(step: Step) -> Hashable:
    """What the inverse of ``step`` takes away: equal for steps that have one inverse."""
    match step:
        case SetComputeMode(gpu) | ServeMps(gpu) | SetTimeSlice(gpu):
            return type(step), gpu
        case MpsNamespace(gpu, name):
            return type(step), gpu, name
        case EnsureMigMode() | CreateMigDevice() | LimitPod():
            return step
        case _:
            assert_never(step)


def same_devices(record: Record, claim: AllocatedClaim) -> bool:
    """Whether ``record`` was made for this very allocation, so that it answers a repeat.

    A claim that is released and used again keeps its UID and may hold other devices.
    """
    return record.claim.uid == claim.uid and record.claim.allocations == claim.allocations


def _device(allocation: Allocation, devices: Mapping[DeviceName, Device]) -> Device:
    device = devices.get(allocation.device)
    if device is None:
        known = _names_near(allocation.device, devices)
        raise UnknownDeviceError(
            f"device {allocation.device} of pool {allocation.pool} is not on this node; it has: "
            f"{known}. The card may be lost or excluded by the node policy, or its driver no "
            "longer offers the profile; delete the pod so that its claim is allocated again"
        )
    return device


def _names_near(name: DeviceName, devices: Mapping[DeviceName, Device]) -> str:
    """The devices of the same card, or all cards: a node may have hundreds of devices."""
    card = card_part(name)
    near = sorted(each for each in devices if card_part(each) == card)
    near = near or sorted(each for each in devices if card_part(each) == each)
    more = f" and {len(near) - _KNOWN_NAMES} more" if len(near) > _KNOWN_NAMES else ""
    return (", ".join(near[:_KNOWN_NAMES]) or "none") + more


def _place(device: Device, placement: Placement | None) -> str:
    where = "" if placement is None else f", {placement}"
    return f"device {device.name} (card {device.gpu.uuid}{where})"


def _process(process: GpuProcess) -> str:
    return f"{process.pid} ({process.name})" if process.name else str(process.pid)


def _check_free(
    device: Device, held: Held, claim: AllocatedClaim, holders: Iterable[Holder]
) -> None:
    for other in holders:
        if other.held.gpu != held.gpu or not overlap(other.held.placement, held.placement):
            continue
        if held.type in ("mps", "timeslice") and other.held.type == held.type:
            continue  # whether they fit together is another question
        place = _place(device, held.placement)
        if other.claim is claim and other.held.allocation.device == device.name:
            raise DeviceConflictError(f"{place} is allocated twice in claim {claim}, wanted: once")
        if other.claim is claim:
            raise DeviceConflictError(
                f"{place} overlaps device {other.held.allocation.device} of the same claim {claim}"
            )
        raise DeviceHeldError(
            f"{place} is held by claim {other.claim}{_as_what(other.held, held)} and cannot be "
            f"prepared for claim {claim} before that one is unprepared; `aliquot node status` on "
            "the node lists the holders"
        )


def _as_what(other: Held, held: Held) -> str:
    """What the holder has, where it is not the very same device."""
    if (other.place, other.type) == (held.place, held.type):
        return ""
    if other.placement is None:
        return f" ({shares.share_text(other)})"
    return f" ({other.profile} at {other.placement})"


def _check_foreign(device: Device, held: Held, foreign: Iterable[Foreign]) -> None:
    """An adopted partition is what it is; anything else must not be where the claim goes."""
    there = [each.instance for each in foreign if each.gpu == held.gpu]
    if isinstance(device, MigPartition) and device.adopted:
        if not any(_is(device, each) for each in there):
            raise UnknownDeviceError(
                f"{_place(device, held.placement)} was adopted from its maker and is gone: make "
                f"{device.profile.name} at {device.placement} again, or delete the pod so that "
                "its claim is allocated again"
            )
        return
    for each in there:
        if overlap(held.placement, each.placement):
            raise DeviceConflictError(
                f"{_place(device, held.placement)} is taken by GPU instance {each.id} at "
                f"{each.placement}, which was not made for a claim of this driver; destroy it "
                f"(`nvidia-smi mig -dci -i {held.gpu} -gi {each.id}`, then `nvidia-smi mig -dgi "
                f"-i {held.gpu} -gi {each.id}`) when "
                "nobody needs it"
            )


def _is(device: MigPartition, instance: MigInstance) -> bool:
    return (device.profile.id, device.placement) == (instance.profile_id, instance.placement)


def _off(gpu: GpuUuid, toggle: bool | None) -> tuple[Step, ...]:
    return () if toggle is None else (EnsureMigMode(gpu, False, toggle),)


def _whole_steps(gpu: GpuUuid, toggle: bool | None, allocation: Allocation) -> tuple[Step, ...]:
    mode = allocation.compute_mode
    first = _off(gpu, toggle)
    return first if mode is None else (*first, SetComputeMode(gpu, mode))


def _check_wishes(allocation: Allocation) -> None:
    """Wishes for shares: a device with limits of the hardware meets every demand, and has no
    other limits."""
    wishes = allocation.wishes
    asked = {
        "interval": wishes.interval,
        "memoryLimit": wishes.memory_limit,
        "computePercentLimit": wishes.percent_limit,
    }
    wrong = [key for key, value in asked.items() if value is not None]
    if wrong:
        raise InvalidConfigError([shares.not_for(key, allocation.device) for key in wrong])


def _partition_steps(device: MigPartition, allocation: Allocation) -> tuple[Step, ...]:
    _check_wishes(allocation)
    if allocation.compute_mode is not None:
        raise InvalidConfigError(
            [
                f"computeMode: {allocation.compute_mode.name} is asked for device {device.name}, "
                "but only whole cards have a compute mode (EXCLUSIVE_PROCESS is not supported in "
                "MIG mode); leave it out of the config of this request"
            ]
        )
    if device.adopted:
        return ()
    gpu, profile = device.gpu.uuid, device.profile
    return (
        EnsureMigMode(gpu, True, device.toggle),
        CreateMigDevice(gpu, profile.name, profile.id, device.placement),
    )
