"""Between ``Record`` and the journal's JSON."""

from collections.abc import Callable, Mapping
from typing import Any, assert_never

from api.journal import (
    JournalAllocation,
    JournalConsumed,
    JournalError,
    JournalPartition,
    JournalRecord,
    JournalShare,
    JournalStep,
    JournalWishes,
    decode_record,
    encode_record,
)
from driver.errors import StateError
from driver.model.claims import AllocatedClaim, Allocation, ClaimState, Held, Record
from driver.model.gpu import ComputeMode
from driver.model.ids import ClaimUid, DeviceName, GpuUuid, RequestName
from driver.model.mig import Placement
from driver.model.shares import Consumed, Limits, Share, Wishes
from driver.model.steps import (
    CreateMigDevice,
    EnsureMigMode,
    LimitPod,
    MpsNamespace,
    ServeMps,
    SetComputeMode,
    SetTimeSlice,
    Step,
    TimeSliceInterval,
)
from driver.model.units import Bytes

_MODES = {
    ComputeMode.DEFAULT: "Default",
    ComputeMode.EXCLUSIVE_PROCESS: "ExclusiveProcess",
    ComputeMode.PROHIBITED: "Prohibited",
}
_MODES_READ = {name: mode for mode, name in _MODES.items()}
_NOTHING = Wishes()


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
        consumed=_write_consumed(allocation.consumed),
        wishes=_write_wishes(allocation.wishes),
        share=_write_share(held.share),
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
            consumed=_read_consumed(allocation.consumed),
            wishes=_read_wishes(allocation.wishes),
        ),
        gpu=GpuUuid(allocation.gpu),
        type=allocation.type,
        placement=None if partition is None else _placement(partition),
        profile=None if partition is None else partition.profile,
        share=_read_share(allocation.share),
    )


def _write_consumed(consumed: Consumed | None) -> JournalConsumed | None:
    if consumed is None:
        return None
    return JournalConsumed(consumed.memory, consumed.compute_percent, consumed.shares)


def _read_consumed(consumed: JournalConsumed | None) -> Consumed | None:
    if consumed is None:
        return None
    return Consumed(_bytes(consumed.memory), consumed.compute_percent, consumed.shares)


def _write_wishes(wishes: Wishes) -> JournalWishes | None:
    if wishes == _NOTHING:
        return None
    require = None if wishes.require == _NOTHING.require else wishes.require
    interval = _interval_name(wishes.interval)
    return JournalWishes(wishes.memory_limit, wishes.percent_limit, require, interval)


def _read_wishes(wishes: JournalWishes | None) -> Wishes:
    if wishes is None:
        return _NOTHING
    require = wishes.require or _NOTHING.require
    limit = _bytes(wishes.memory_limit)
    return Wishes(limit, wishes.percent_limit, require, _interval(wishes.interval))


def _write_share(share: Share | None) -> JournalShare | None:
    if share is None:
        return None
    return JournalShare(
        memory=share.memory,
        compute_percent=share.compute_percent,
        memory_by=share.limits.memory,
        compute_by=share.limits.compute,
        memory_limit=share.memory_limit,
        percent_limit=share.percent_limit,
        multi_user=share.multi_user,
        namespace=share.namespace,
        interval=_interval_name(share.interval),
    )


def _read_share(share: JournalShare | None) -> Share | None:
    if share is None:
        return None
    return Share(
        memory=Bytes(share.memory),
        compute_percent=share.compute_percent,
        limits=Limits(share.memory_by, share.compute_by),
        memory_limit=_bytes(share.memory_limit),
        percent_limit=share.percent_limit,
        multi_user=share.multi_user,
        namespace=share.namespace,
        interval=_interval(share.interval),
    )


def _bytes(size: int | None) -> Bytes | None:
    return None if size is None else Bytes(size)


def interval_name(interval: TimeSliceInterval) -> str:
    """``Default``, ``Short``, …: of ``api.policy_sharing.INTERVALS``."""
    return interval.name.capitalize()


def _interval_name(interval: TimeSliceInterval | None) -> str | None:
    return None if interval is None else interval_name(interval)


def _interval(name: str | None) -> TimeSliceInterval | None:
    return None if name is None else TimeSliceInterval[name.upper()]


def _write_partition(profile: str | None, placement: Placement | None) -> JournalPartition | None:
    if profile is None or placement is None:
        return None
    return JournalPartition(profile, placement.start, placement.size)


def _placement(partition: JournalPartition) -> Placement:
    return Placement(partition.start, partition.size)


def _write_step(step: Step) -> JournalStep:
    match step:
        case SetComputeMode(gpu, mode):
            found = JournalStep(do="setComputeMode", gpu=gpu, mode=_MODES[mode])
        case EnsureMigMode(gpu, on, toggle):
            found = JournalStep(do="ensureMigMode", gpu=gpu, on=on, toggle=toggle)
        case CreateMigDevice(gpu, profile, profile_id, placement):
            found = JournalStep(
                do="createMigDevice",
                gpu=gpu,
                partition=_write_partition(profile, placement),
                profile_id=profile_id,
            )
        case ServeMps(gpu, memory, percent, protocol):
            found = JournalStep(
                do="serveMps",
                gpu=gpu,
                memory_limit=memory,
                percent_limit=percent,
                protocol=protocol,
            )
        case MpsNamespace(gpu, name, memory, percent):
            found = JournalStep(
                do="mpsNamespace",
                gpu=gpu,
                name=name,
                memory_limit=memory,
                percent_limit=percent,
            )
        case LimitPod(gpu, pod, memory):
            found = JournalStep(do="limitPod", gpu=gpu, pod=pod, memory_limit=memory)
        case SetTimeSlice(gpu, interval):
            found = JournalStep(do="setTimeSlice", gpu=gpu, interval=interval_name(interval))
        case _:
            assert_never(step)
    return found


def _read_step(step: JournalStep) -> Step:
    return _READ_STEP[step.do](GpuUuid(step.gpu), step)


def _read_mode(gpu: GpuUuid, step: JournalStep) -> Step:
    return SetComputeMode(gpu, _MODES_READ[step.mode or ""])


def _read_creation(gpu: GpuUuid, step: JournalStep) -> Step:
    partition = step.partition or JournalPartition("", 0, 0)
    return CreateMigDevice(gpu, partition.profile, step.profile_id, _placement(partition))


def _read_time_slice(gpu: GpuUuid, step: JournalStep) -> Step:
    return SetTimeSlice(gpu, _interval(step.interval) or TimeSliceInterval.DEFAULT)


# What ``decode_record`` lets through is complete for its ``do``.
_READ_STEP: Mapping[str, Callable[[GpuUuid, JournalStep], Step]] = {
    "setComputeMode": _read_mode,
    "ensureMigMode": lambda gpu, step: EnsureMigMode(gpu, step.on, step.toggle),
    "createMigDevice": _read_creation,
    "serveMps": lambda gpu, step: ServeMps(
        gpu, step.memory_limit, step.percent_limit, step.protocol
    ),
    "mpsNamespace": lambda gpu, step: MpsNamespace(
        gpu, step.name, step.memory_limit, step.percent_limit
    ),
    "limitPod": lambda gpu, step: LimitPod(gpu, step.pod, step.memory_limit or 0),
    "setTimeSlice": _read_time_slice,
}
