"""Decide what preparing a claim takes."""

from collections.abc import Iterable, Mapping
from typing import assert_never

from driver.errors import DeviceConflictError, UnknownDeviceError
from driver.model.claims import AllocatedClaim, Allocation, ClaimState, Held, Record
from driver.model.devices import Device, WholeGpu
from driver.model.ids import DeviceName, GpuUuid
from driver.model.steps import SetComputeMode, Step
from driver.plan.kinds import device_type


def plan_prepare(
    claim: AllocatedClaim,
    devices: Mapping[DeviceName, Device],
    records: Iterable[Record],
    boot_id: str,
) -> Record:
    """The record to write before the first change to the node; COMPLETED when nothing changes.

    ``devices`` is what the node has, whether published or not; ``records`` at least those of the
    cards that the claim touches, its own earlier one does no harm. The scheduler should never
    hand out a device twice; the driver is the last line of defence (KEP-4381). Allocations with
    admin access neither conflict nor count nor change anything (KEP-5018).

    Raises:
        UnknownDeviceError: an allocation names a device that is not in ``devices``.
        DeviceConflictError: another claim, or another allocation of this one, holds the card.
    """
    holders: dict[GpuUuid, AllocatedClaim] = {
        held.gpu: record.claim
        for record in records
        if record.claim.uid != claim.uid
        for held in record.held
        if not held.allocation.admin
    }
    found: list[Held] = []
    steps: dict[Step, None] = {}  # an ordered set: equal steps are one effect
    for allocation in claim.allocations:
        device = _device(allocation, devices)
        found.append(Held(allocation, device.gpu.uuid, device_type(device)))
        if allocation.admin:
            continue
        _check_free(device, claim, holders.get(device.gpu.uuid))
        holders[device.gpu.uuid] = claim
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
        known = ", ".join(sorted(devices)) or "none"
        raise UnknownDeviceError(
            f"device {allocation.device} of pool {allocation.pool} is not on this node; it has: "
            f"{known}. The card may be lost or excluded by the node policy; delete the pod so "
            "that its claim is allocated again"
        )
    return device


def _check_free(device: Device, claim: AllocatedClaim, holder: AllocatedClaim | None) -> None:
    if holder is None:
        return
    card = f"device {device.name} (card {device.gpu.uuid})"
    if holder is claim:
        raise DeviceConflictError(f"{card} is allocated twice in claim {claim}, wanted: once")
    raise DeviceConflictError(
        f"{card} is held by claim {holder} and cannot be prepared for claim {claim} before that "
        "one is unprepared; `aliquot node status` on the node lists the holders"
    )


def _steps(device: Device, allocation: Allocation) -> tuple[Step, ...]:
    match device:
        case WholeGpu(gpu=gpu):
            mode = allocation.compute_mode
            return () if mode is None else (SetComputeMode(gpu.uuid, mode),)
        case _:
            assert_never(device)
