"""What of sharing outlived the claims it was made for, or is missing though claims need it."""

from collections.abc import Iterable, Set

from driver.model.claims import ClaimState, Record
from driver.model.gpu import ComputeMode
from driver.model.ids import GpuUuid
from driver.model.steps import ServeMps, SetComputeMode, SetTimeSlice, Step
from driver.plan.limits import given


def unneeded(gpu: GpuUuid, records: Iterable[Record], *, served: bool) -> tuple[Step, ...]:
    """Steps to undo on a card whose ``records`` do not want them, in this order.

    ``served``: its MPS control daemon runs. A compute mode is only ever taken back to the
    default, so undoing a step that was never done does no harm.
    """
    steps = [step for record in records for step in record.steps if step.gpu == gpu]
    found: list[Step] = []
    if served and not any(isinstance(step, ServeMps) for step in steps):
        found.append(ServeMps(gpu, None, None, 2))
    if not any(isinstance(step, SetComputeMode) for step in steps):
        found.append(SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS))
    return tuple(found)


def unserved(records: Iterable[Record], served: Set[GpuUuid]) -> tuple[Record, ...]:
    """Records of prepared claims that need the control daemon of a card that has none."""
    return tuple(
        record
        for record in records
        if record.state is ClaimState.COMPLETED
        and any(isinstance(step, ServeMps) and step.gpu not in served for step in record.steps)
    )


def settings(records: Iterable[Record]) -> dict[Step, Record]:
    """What prepared claims need their cards set to, each with one of them: a reset of the card,
    its driver loaded anew, or an administrator may have set it back."""
    return {
        step: record
        for record in records
        if record.state is ClaimState.COMPLETED
        for step in record.steps
        if isinstance(step, SetComputeMode | SetTimeSlice)
    }


def limiting(records: Iterable[Record]) -> tuple[Record, ...]:
    """Records of prepared claims whose pods are limited by cgroup."""
    return tuple(each for each in records if each.state is ClaimState.COMPLETED and given(each))
