"""Decide what preparing a claim takes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from driver.errors import (
    DeviceConflictError,
    DeviceHeldError,
    InvalidConfigError,
    UnknownDeviceError,
)
from driver.model.claims import AllocatedClaim, Allocation, ClaimState, Held, Record
from driver.model.devices import Device, MigPartition, WholeGpu
from driver.model.ids import DeviceName, GpuUuid
from driver.model.mig import MigInstance, Placement, overlap
from driver.model.steps import CreateMigDevice, EnsureMigMode, SetComputeMode, Step
from driver.plan.kinds import device_type

_KNOWN_NAMES = 12  # of a node's devices, in an error's text


@dataclass(frozen=True, slots=True)
class Foreign:
    """An instance on a card that no record of ours has."""

    gpu: GpuUuid
    instance: MigInstance


@dataclass(frozen=True, slots=True)
class _Holder:
    held: Held
    claim: AllocatedClaim


def plan_prepare(
    claim: AllocatedClaim,
    devices: Mapping[DeviceName, Device],
    records: Iterable[Record],
    boot_id: str,
    foreign: Sequence[Foreign] = (),
) -> Record:
    """The record to write before the first change to the node; COMPLETED when nothing changes.

    ``devices`` is what the node has, whether published or not; ``records`` at least those of the
    cards that the claim touches, its own earlier one does no harm. The scheduler should never
    hand out a device twice; the driver is the last line of defence (KEP-4381). Allocations with
    admin access neither conflict nor count nor change anything (KEP-5018). ``foreign`` are the
    instances on the cards of partitions that other programs made, adopted ones included.

    Raises:
        UnknownDeviceError: an allocation names a device that is not in ``devices``, or an adopted
            partition that is gone.
        DeviceConflictError: another claim, another allocation of this one, or an instance of
            another program holds the card or memory slices of it.
        InvalidConfigError: the claim's config does not fit the device.
    """
    holders = [
        _Holder(held, record.claim)
        for record in records
        if record.claim.uid != claim.uid
        for held in record.held
        if not held.allocation.admin
    ]
    found: list[Held] = []
    steps: dict[Step, None] = {}  # an ordered set: equal steps are one effect
    for allocation in claim.allocations:
        device = _device(allocation, devices)
        held = _held(allocation, device)
        found.append(held)
        if allocation.admin:
            continue
        _check_free(device, held, claim, holders)
        _check_foreign(device, held, foreign)
        holders.append(_Holder(held, claim))
        steps |= dict.fromkeys(_steps(device, allocation))
    state = ClaimState.STARTED if steps else ClaimState.COMPLETED
    return Record(claim, tuple(found), tuple(steps), state, boot_id)


def steps_to_undo(record: Record, others: Iterable[Record]) -> tuple[Step, ...]:
    """The steps of ``record``, last first, that no other claim still needs.

    ``others`` are the other records of its cards; its own among them is passed over.
    """
    needed = {
        step for other in others if other.claim.uid != record.claim.uid for step in other.steps
    }
    return tuple(step for step in reversed(record.steps) if step not in needed)


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
    card = name.partition("-mig-")[0]
    near = sorted(each for each in devices if each.partition("-mig-")[0] == card)
    near = near or sorted(each for each in devices if "-mig-" not in each)
    more = f" and {len(near) - _KNOWN_NAMES} more" if len(near) > _KNOWN_NAMES else ""
    return (", ".join(near[:_KNOWN_NAMES]) or "none") + more


def _held(allocation: Allocation, device: Device) -> Held:
    gpu, type_ = device.gpu.uuid, device_type(device)
    match device:
        case WholeGpu():
            return Held(allocation, gpu, type_)
        case MigPartition(profile=profile, placement=placement):
            return Held(allocation, gpu, type_, placement, profile.name)
        case _:
            assert_never(device)


def _place(device: Device, placement: Placement | None) -> str:
    where = "" if placement is None else f", {placement}"
    return f"device {device.name} (card {device.gpu.uuid}{where})"


def _check_free(
    device: Device, held: Held, claim: AllocatedClaim, holders: Iterable[_Holder]
) -> None:
    for other in holders:
        if other.held.gpu != held.gpu or not overlap(other.held.placement, held.placement):
            continue
        place = _place(device, held.placement)
        if other.claim is claim and other.held.place == held.place:
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
    if other.place == held.place:
        return ""
    if other.placement is None:
        return " (the whole card)"
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


def _steps(device: Device, allocation: Allocation) -> tuple[Step, ...]:
    match device:
        case WholeGpu(gpu=gpu, toggle=toggle):
            mode = allocation.compute_mode
            first = () if toggle is None else (EnsureMigMode(gpu.uuid, False, toggle),)
            return first if mode is None else (*first, SetComputeMode(gpu.uuid, mode))
        case MigPartition():
            return _partition_steps(device, allocation)
        case _:
            assert_never(device)


def _partition_steps(device: MigPartition, allocation: Allocation) -> tuple[Step, ...]:
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
