from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import DeviceConflictError, UnknownDeviceError
from driver.model.claims import ClaimState, Record
from driver.model.gpu import ComputeMode
from driver.model.ids import DeviceName
from driver.model.steps import SetComputeMode
from driver.plan.prepare import plan_prepare, same_devices, steps_to_undo
from tests.plan.builders import BOOT, allocation, by_name, claim, gpu, whole

CARDS = [gpu(n) for n in range(4)]
A, B, C, D = map(whole, CARDS)
DEVICES = by_name(A, B, C, D)
EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


def plan(wanted, *records):
    return plan_prepare(wanted, DEVICES, records, BOOT)


def test_a_whole_card_needs_no_steps_and_so_is_completed_at_once():
    wanted = claim("a", allocation(A), allocation(B, 1))
    record = plan(wanted)
    assert (record.claim, record.steps, record.boot_id) == (wanted, (), BOOT)
    assert record.state is ClaimState.COMPLETED
    assert [(held.gpu, held.type) for held in record.held] == [
        (CARDS[0].uuid, "gpu"),
        (CARDS[1].uuid, "gpu"),
    ]
    assert record.gpus == (CARDS[0].uuid, CARDS[1].uuid)


def test_a_compute_mode_is_a_step_of_each_card():
    wanted = claim(
        "a",
        allocation(A, compute_mode=EXCLUSIVE),
        allocation(B, 1),
        allocation(C, 2, compute_mode=ComputeMode.DEFAULT),
    )
    record = plan(wanted)
    assert record.state is ClaimState.STARTED
    assert record.steps == (
        SetComputeMode(CARDS[0].uuid, EXCLUSIVE),
        SetComputeMode(CARDS[2].uuid, ComputeMode.DEFAULT),
    )
    assert steps_to_undo(record, [record]) == record.steps[::-1]


def test_a_step_that_another_claim_needs_is_not_undone():
    first = plan(claim("a", allocation(A, compute_mode=EXCLUSIVE)))
    other = replace(first, claim=claim("b", allocation(A, compute_mode=EXCLUSIVE)))
    assert steps_to_undo(first, [first, other]) == ()


def test_a_device_that_is_not_there_is_named_with_those_that_are():
    gone = replace(allocation(A), device=DeviceName("gpu-ffffffff"))
    with pytest.raises(
        UnknownDeviceError, match=r"device gpu-ffffffff .*gpu-00000000, gpu-000000"
    ):
        plan(claim("a", gone))
    with pytest.raises(UnknownDeviceError, match=r"it has: none.*delete the pod"):
        plan_prepare(claim("a", allocation(A)), {}, (), BOOT)


def test_a_card_that_another_claim_holds_names_the_holder():
    holder = plan(claim("a", allocation(A)))
    with pytest.raises(DeviceConflictError, match=r"gpu-00000000 .*held by claim team/claim-a:a "):
        plan(claim("b", allocation(A)), holder)
    assert plan(claim("b", allocation(B)), holder)


def test_a_holder_counts_although_its_device_has_another_name_now():
    holder = plan(claim("a", allocation(A)))
    renamed = replace(A, name=DeviceName("gpu-000000001b7e4d0a"))
    with pytest.raises(DeviceConflictError, match="held by claim team/claim-a:a"):
        plan_prepare(claim("b", allocation(renamed)), by_name(renamed), [holder], BOOT)


def test_its_own_earlier_record_is_no_conflict():
    wanted = claim("a", allocation(A))
    assert plan(wanted, plan(wanted)) == plan(wanted)


def test_one_claim_cannot_hold_a_card_twice():
    with pytest.raises(DeviceConflictError, match="is allocated twice in claim team/claim-a:a"):
        plan(claim("a", allocation(A), allocation(A, 1)))


def test_admin_access_neither_conflicts_nor_counts_nor_changes_the_card():
    holder = plan(claim("a", allocation(A)))
    admin = plan(claim("b", allocation(A, admin=True, compute_mode=EXCLUSIVE)), holder)
    assert (admin.steps, admin.state) == ((), ClaimState.COMPLETED)
    assert admin.held[0].gpu == CARDS[0].uuid
    assert plan(claim("c", allocation(A)), admin)
    assert plan(claim("d", allocation(A), allocation(A, 1, admin=True)))


def test_a_repeat_is_the_same_allocation_of_the_same_claim():
    wanted = claim("a", allocation(A))
    record = plan(wanted)
    assert same_devices(record, wanted)
    assert not same_devices(record, claim("a", allocation(B)))
    assert not same_devices(record, claim("b", allocation(A)))
    assert not same_devices(record, claim("a", allocation(A, compute_mode=EXCLUSIVE)))


@given(st.lists(st.lists(st.sampled_from([A, B, C, D]), min_size=1, max_size=4), max_size=8))
def test_no_card_is_ever_held_twice(wishes):
    records: list[Record] = []
    for n, devices in enumerate(wishes):
        wanted = claim(str(n), *(allocation(device, i) for i, device in enumerate(devices)))
        try:
            records.append(plan(wanted, *records))
        except DeviceConflictError:
            continue
    held = [each.gpu for record in records for each in record.held]
    assert len(held) == len(set(held))
    if wishes and len(set(map(id, wishes[0]))) == len(wishes[0]):
        assert records
