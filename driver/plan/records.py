"""Between ``Record`` and the journal's JSON."""

from collections.abc import Mapping
from typing import Any, assert_never

from api.journal import (
    JournalAllocation,
    JournalError,
    JournalPartition,
    JournalRecord,
    JournalStep,
    decode_record,
    encode_record,
)
from driver.errors import StateError
from driver.model.claims import AllocatedClaim, Allocation, ClaimState, Held, Record
from driver.model.gpu import ComputeMode
from driver.model.ids import ClaimUid, DeviceName, GpuUuid, RequestName
from driver.model.mig import Placement
from driver.model.steps import CreateMigDevice, EnsureMigMode, SetComputeMode, Step

_MODES = {
    ComputeMode.DEFAULT: "Default",
    ComputeMode.EXCLUSIVE_PROCESS: "ExclusiveProcess",
    ComputeMode.PROHIBITED: "Prohibited",
}
_MODES_READ = {name: mode for mode, name in _MODES.items()}


def to_payload(record: Record) -> dict[str, Any]:
    """The record as JSON data, unknown fields it was read with included."""
    claim = record.claim
    return encode_record(
        JournalRecord(
            uid=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            state=record.state.value,
            boot_id=record.boot_id,
            allocations=tuple(_write_held(held) for held in record.held),
            steps=tuple(_write_step(step) for step in record.steps),
            unknown=record.extra,
        )
    )


def from_payload(payload: Mapping[str, Any]) -> Record:
    """The inverse of ``to_payload``.

    Raises:
        StateError: naming the field that cannot be trusted.
    """
    try:
        journal = decode_record(payload)
    except JournalError as error:
        raise StateError(f"journal record: {error}") from error
    held = tuple(_read_held(allocation) for allocation in journal.allocations)
    return Record(
        claim=AllocatedClaim(
            uid=ClaimUid(journal.uid),
            namespace=journal.namespace,
            name=journal.name,
            allocations=tuple(each.allocation for each in held),
        ),
        held=held,
        steps=tuple(_read_step(step) for step in journal.steps),
        state=ClaimState(journal.state),
        boot_id=journal.boot_id,
        extra=journal.unknown,
    )


def _write_held(held: Held) -> JournalAllocation:
    allocation = held.allocation
    mode = allocation.compute_mode
    return JournalAllocation(
        position=allocation.position,
        request=allocation.request,
        pool=allocation.pool,
        device=allocation.device,
        gpu=held.gpu,
        type=held.type,
        share_id=allocation.share_id,
        admin_access=allocation.admin,
        compute_mode=None if mode is None else _MODES[mode],
        partition=_write_partition(held.profile, held.placement),
    )


def _read_held(allocation: JournalAllocation) -> Held:
    mode, partition = allocation.compute_mode, allocation.partition
    return Held(
        allocation=Allocation(
            position=allocation.position,
            request=RequestName(allocation.request),
            pool=allocation.pool,
            device=DeviceName(allocation.device),
            share_id=allocation.share_id,
            admin=allocation.admin_access,
            compute_mode=None if mode is None else _MODES_READ[mode],
        ),
        gpu=GpuUuid(allocation.gpu),
        type=allocation.type,
        placement=None if partition is None else _placement(partition),
        profile=None if partition is None else partition.profile,
    )


def _write_partition(profile: str | None, placement: Placement | None) -> JournalPartition | None:
    if profile is None or placement is None:
        return None
    return JournalPartition(profile, placement.start, placement.size)


def _placement(partition: JournalPartition) -> Placement:
    return Placement(partition.start, partition.size)


def _write_step(step: Step) -> JournalStep:
    match step:
        case SetComputeMode(gpu, mode):
            return JournalStep(do="setComputeMode", gpu=gpu, mode=_MODES[mode])
        case EnsureMigMode(gpu, on, toggle):
            return JournalStep(do="ensureMigMode", gpu=gpu, on=on, toggle=toggle)
        case CreateMigDevice(gpu, profile, profile_id, placement):
            return JournalStep(
                do="createMigDevice",
                gpu=gpu,
                partition=_write_partition(profile, placement),
                profile_id=profile_id,
            )
        case _:
            assert_never(step)


def _read_step(step: JournalStep) -> Step:
    gpu = GpuUuid(step.gpu)
    if step.partition is not None:
        place = _placement(step.partition)
        return CreateMigDevice(gpu, step.partition.profile, step.profile_id, place)
    if step.mode is not None:
        return SetComputeMode(gpu, _MODES_READ[step.mode])
    return EnsureMigMode(gpu, step.on, step.toggle)
