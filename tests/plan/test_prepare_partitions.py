from dataclasses import replace

import pytest

from driver.errors import DeviceConflictError, InvalidConfigError, UnknownDeviceError
from driver.model.claims import ClaimState
from driver.model.gpu import ComputeMode
from driver.model.mig import MigInstance, Placement
from driver.model.steps import CreateMigDevice, EnsureMigMode, SetComputeMode
from driver.plan.prepare import Around, Foreign, plan_prepare, steps_to_undo
from tests.plan.builders import (
    BOOT,
    allocation,
    by_name,
    claim,
    cuttable,
    holding,
    partition,
    whole,
)

CARD = cuttable(0)


def wanting(*devices, uid="a", **changes):
    return claim(uid, *(allocation(each, n, **changes) for n, each in enumerate(devices)))


def plan(*devices, records=(), foreign=(), known=None, **changes):
    wanted = wanting(*devices, **changes)
    return plan_prepare(wanted, known or by_name(*devices), records, BOOT, Around(foreign=foreign))


def strange(profile_id, start, size, card=CARD):
    return Foreign(card.uuid, MigInstance(profile_id, Placement(start, size), 3, (0,)))


def test_a_partition_needs_the_mode_and_then_itself():
    record = plan(partition(CARD, "3g.40gb", 4))
    assert record.state is ClaimState.STARTED
    assert record.steps == (
        EnsureMigMode(CARD.uuid, on=True, toggle=True),
        CreateMigDevice(CARD.uuid, "3g.40gb", 9, Placement(4, 4)),
    )
    (held,) = record.held
    assert (held.type, held.profile, held.placement) == ("mig", "3g.40gb", Placement(4, 4))
    assert record.places == ((CARD.uuid, Placement(4, 4)),)


def test_several_partitions_of_one_card_in_one_claim():
    parts = [partition(CARD, "1g.10gb", n) for n in range(3)]
    record = plan(*parts)
    assert [step.placement.start for step in record.steps[1:]] == [0, 1, 2]
    assert len(record.steps) == 4  # the mode once


def test_an_adopted_partition_needs_no_step():
    part = partition(CARD, "3g.40gb", 4, adopted=True)
    record = plan(part, foreign=[strange(9, 4, 4)])
    assert (record.steps, record.state) == ((), ClaimState.COMPLETED)


def test_an_adopted_partition_that_is_gone_is_refused():
    part = partition(CARD, "3g.40gb", 4, adopted=True)
    with pytest.raises(UnknownDeviceError, match=r"make 3g.40gb at memory slices 4 to 7 again"):
        plan(part)


@pytest.mark.parametrize(
    ("held", "wanted", "conflict"),
    [
        (("3g.40gb", 4), ("1g.10gb", 5), True),
        (("1g.10gb", 5), ("3g.40gb", 4), True),
        (("3g.40gb", 4), ("3g.40gb", 4), True),
        (("3g.40gb", 4), ("4g.40gb", 0), False),
        (("1g.10gb", 5), ("1g.10gb", 6), False),
        (None, ("1g.10gb", 0), True),
        (("1g.10gb", 0), None, True),
    ],
)
def test_what_overlaps_what_another_claim_holds_is_refused(held, wanted, conflict):
    first = partition(CARD, *held) if held else whole(CARD)
    second = partition(CARD, *wanted) if wanted else whole(CARD)
    other = holding(wanting(first, uid="other"), first)
    if not conflict:
        assert plan(second, records=[other])
        return
    with pytest.raises(DeviceConflictError) as error:
        plan(second, records=[other])
    assert f"held by claim {other.claim}" in str(error.value)
    assert CARD.uuid in str(error.value)


def test_the_text_says_what_the_holder_has():
    first = partition(CARD, "3g.40gb", 4)
    other = holding(wanting(first, uid="other"), first)
    with pytest.raises(DeviceConflictError, match=r"\(3g.40gb at memory slices 4 to 7\)"):
        plan(partition(CARD, "1g.10gb", 5), records=[other])
    with pytest.raises(DeviceConflictError, match=r"\(the whole card\)"):
        plan(first, records=[holding(wanting(whole(CARD), uid="other"), whole(CARD))])


def test_partitions_of_other_cards_do_not_conflict():
    first, second = partition(CARD, "7g.80gb"), partition(cuttable(1), "7g.80gb")
    assert plan(second, records=[holding(wanting(first, uid="other"), first)])


def test_two_devices_of_one_claim_must_not_overlap():
    with pytest.raises(DeviceConflictError, match=r"overlaps device .*-5 of the same claim"):
        plan(partition(CARD, "1g.10gb", 5), partition(CARD, "3g.40gb", 4))
    with pytest.raises(DeviceConflictError, match="allocated twice"):
        plan(partition(CARD, "1g.10gb", 5), partition(CARD, "1g.10gb", 5))


@pytest.mark.parametrize("target", ["exactly-there", "over-it", "the-whole-card"])
def test_an_instance_of_another_program_is_named_with_the_way_to_be_rid_of_it(target):
    wanted = {
        "exactly-there": partition(CARD, "2g.20gb", 2),
        "over-it": partition(CARD, "4g.40gb", 0),
        "the-whole-card": whole(CARD),
    }[target]
    with pytest.raises(DeviceConflictError) as error:
        plan(wanted, foreign=[strange(14, 2, 2)])
    text = str(error.value)
    assert "GPU instance 3 at memory slices 2 to 3" in text
    assert f"nvidia-smi mig -dgi -i {CARD.uuid} -gi 3" in text


def test_an_instance_elsewhere_is_nobodys_business():
    other = strange(14, 2, 2, cuttable(1))
    assert plan(partition(CARD, "1g.10gb", 6), foreign=[strange(14, 2, 2), other])


def test_admin_access_to_a_partition_changes_and_counts_nothing():
    part = partition(CARD, "1g.10gb", 6)
    other = holding(wanting(part, uid="other"), part)
    record = plan(part, records=[other], foreign=[strange(19, 6, 1)], admin=True)
    assert (record.steps, record.places) == ((), ())


def test_a_partition_has_no_compute_mode():
    with pytest.raises(InvalidConfigError, match=r"computeMode: EXCLUSIVE_PROCESS .* whole cards"):
        plan(partition(CARD, "1g.10gb"), compute_mode=ComputeMode.EXCLUSIVE_PROCESS)


def test_a_whole_card_that_may_be_cut_leaves_mig_mode_first():
    device = replace(whole(CARD), toggle=True)
    record = plan(device, compute_mode=ComputeMode.EXCLUSIVE_PROCESS)
    assert record.steps == (
        EnsureMigMode(CARD.uuid, on=False, toggle=True),
        SetComputeMode(CARD.uuid, ComputeMode.EXCLUSIVE_PROCESS),
    )


def test_a_profile_that_the_card_no_longer_offers_is_named_with_what_it_has():
    gone = partition(CARD, "2g.20gb", 2)
    known = by_name(whole(CARD), *(partition(CARD, "1g.10gb", n) for n in range(7)))
    with pytest.raises(UnknownDeviceError) as error:
        plan(gone, known=known)
    assert "mig-2g-20gb-2" in str(error.value)
    assert "gpu-00000000-mig-1g-10gb-0" in str(error.value)
    assert "no longer offers the profile" in str(error.value)


def test_an_unknown_device_is_told_with_a_few_names_only():
    known = by_name(*(whole(cuttable(n)) for n in range(20)))
    with pytest.raises(UnknownDeviceError, match="and 8 more"):
        plan(whole(cuttable(99)), known=known)


def test_the_mode_stays_while_others_need_it_and_each_partition_is_undone_alone():
    first, second = partition(CARD, "1g.10gb", 0), partition(CARD, "1g.10gb", 1)
    a, b = plan(first), plan(second, uid="b")
    assert steps_to_undo(a, [a, b]) == (a.steps[1],)
