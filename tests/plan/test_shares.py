"""Preparing claims of shares: the last line of defence, and what is done for them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import (
    ClaimError,
    DeviceConflictError,
    DeviceHeldError,
    InvalidConfigError,
)
from driver.model.claims import ClaimState, Record
from driver.model.gpu import ComputeMode, GpuProcess
from driver.model.ids import ClaimUid, RequestName
from driver.model.shares import Consumed, Limits, Share, SharingFacts, Wishes
from driver.model.steps import (
    EnsureMigMode,
    MpsNamespace,
    ServeMps,
    SetComputeMode,
    SetTimeSlice,
    TimeSliceInterval,
)
from driver.model.units import Bytes
from driver.plan.prepare import Around, plan_prepare, steps_to_undo
from driver.plan.shares import namespace_name
from tests.plan.builders import BOOT, allocation, by_name, cuttable, gpu, partition, whole
from tests.plan.shared import (
    GIB,
    MEMORY,
    MIB,
    NEW_DRIVER,
    PODS,
    V2,
    V3,
    of,
    part,
    shared_of,
    wants,
)

CARD, OTHER, CUT = gpu(0), gpu(1), cuttable(2)
MPS, TURNS = shared_of(CARD, modes="[gpu, mps, timeslice]")
MPS_1, TURNS_1 = shared_of(OTHER, modes="[gpu, mps, timeslice]")
MPS_CUT, TURNS_CUT = shared_of(CUT)
NS, _ = shared_of(CARD, V3, NEW_DRIVER, modes="[mps]")
POD, _ = shared_of(CARD, PODS, NEW_DRIVER, modes="[mps]")
POD_V2, _ = shared_of(CARD, replace(V2, no_cgroup=""), NEW_DRIVER, modes="[mps]")
EQUAL, _ = shared_of(CARD, modes="[mps]", shareSize="{memory: 20Gi, computePercent: 25}")
PART = partition(CUT, "1g.10gb", 0)
DEVICES = by_name(
    *map(whole, (CARD, OTHER, CUT)), MPS, TURNS, MPS_1, TURNS_1, MPS_CUT, TURNS_CUT, PART
)
EXCLUSIVE = SetComputeMode(CARD.uuid, ComputeMode.EXCLUSIVE_PROCESS)
SERVE = ServeMps(CARD.uuid, MEMORY, 100, 2)
SHORT, LONG = TimeSliceInterval.SHORT, TimeSliceInterval.LONG


def plan(wanted, *records, devices=DEVICES, **around):
    return plan_prepare(wanted, devices, records, BOOT, Around(**around))


def test_a_share_has_its_own_limits_and_the_daemon_those_of_the_card():
    record = plan(of("a", part(MPS, 14 * GIB, 25)))
    assert record.state is ClaimState.STARTED
    assert record.steps == (EXCLUSIVE, SERVE)
    assert record.held[0].type == "mps"
    assert record.held[0].share == Share(
        Bytes(14 * GIB),
        25,
        Limits("mpsCooperative", "mpsCooperative"),
        memory_limit=Bytes(14 * GIB),
        percent_limit=25,
    )
    assert steps_to_undo(record, [record]) == (SERVE, EXCLUSIVE)


def test_the_last_of_two_claims_ends_what_the_first_began():
    first = plan(of("a", part(MPS)))
    second = plan(of("b", part(MPS)), first)
    assert first.steps == second.steps
    assert steps_to_undo(first, [first, second]) == ()
    assert steps_to_undo(second, [second]) == (SERVE, EXCLUSIVE)


def test_a_further_share_needs_nothing_while_the_daemon_is_known_to_run():
    first = replace(plan(of("a", part(MPS))), state=ClaimState.COMPLETED)
    assert first.steps == (EXCLUSIVE, SERVE)
    second = plan(of("b", part(MPS)), first, served={SERVE})
    assert (second.steps, second.state) == (first.steps, ClaimState.COMPLETED)
    others = [
        plan(of("b", part(MPS)), first),  # it may not run
        plan(of("b", part(MPS)), first, served={replace(SERVE, compute_percent=50)}),
        plan(of("b", part(MPS)), replace(first, state=ClaimState.STARTED), served={SERVE}),
        plan(of("b", part(MPS)), replace(first, boot_id="earlier"), served={SERVE}),
        plan(of("b", part(MPS)), served={SERVE}),
    ]
    assert {each.state for each in others} == {ClaimState.STARTED}
    space = replace(plan(of("a", part(NS)), devices=by_name(NS)), state=ClaimState.COMPLETED)
    served = {step for step in space.steps if isinstance(step, ServeMps)}
    its_own = plan(of("b", part(NS)), space, devices=by_name(NS), served=served)
    assert its_own.state is ClaimState.STARTED  # its namespace


def test_shares_beside_ones_without_a_limit_of_the_pod_have_none_either():
    """A pod with both would have one limit, for the new share alone."""
    before = plan(of("a", part(NS, 20 * GIB)), devices=by_name(NS))
    beside = plan(of("b", part(POD, 10 * GIB)), before, devices=by_name(POD))
    assert beside.held[0].share.limits.memory == "mpsNamespace"
    wanted = of("b", part(POD, 10 * GIB, wishes=Wishes(require="cgroup")))
    with pytest.raises(ClaimError, match="were prepared when pods could not be limited"):
        plan(wanted, before, devices=by_name(POD))
    first = plan(of("a", part(POD, 20 * GIB)), devices=by_name(POD))
    assert first.held[0].share.limits.memory == "cgroup"
    later = plan(of("b", part(NS, 10 * GIB)), first, devices=by_name(NS))
    assert later.held[0].share.limits.memory == "mpsNamespace"


def test_where_a_card_may_be_cut_its_mode_comes_first():
    first, *rest = plan(of("a", part(MPS_CUT))).steps
    assert first == EnsureMigMode(CUT.uuid, False, True)
    assert [type(each) for each in rest] == [SetComputeMode, ServeMps]
    assert plan(of("a", part(TURNS_CUT, 0))).steps == (first,)


def test_shares_that_join_a_card_go_by_its_daemon_and_not_by_a_newer_policy():
    first = plan(of("a", part(MPS)))
    second = plan(of("b", part(EQUAL, 20 * GIB, 25)), first, devices=by_name(EQUAL))
    assert second.steps == (EXCLUSIVE, SERVE)
    assert second.held[0].share.limits == Limits("mpsCooperative", "mpsCooperative")
    changed = replace(second, steps=(EXCLUSIVE, replace(SERVE, memory_limit=MIB)))
    assert steps_to_undo(first, [first, changed]) == ()


def test_equal_shares_are_limited_by_the_daemon_itself():
    record = plan(of("a", part(EQUAL, 20 * GIB, 25)), devices=by_name(EQUAL))
    assert record.steps == (EXCLUSIVE, ServeMps(CARD.uuid, 20 * GIB, 25, 2))
    assert record.held[0].share.limits == Limits("mpsProcess", "mpsProcess")


def test_a_namespace_a_share_where_the_driver_has_them():
    wanted = of(UID, part(NS, 14 * GIB, 25), part(NS, 10 * GIB, 0, 1))
    record = plan(wanted, devices=by_name(NS))
    names = [f"{UID.replace('-', '')}_{n}" for n in (0, 1)]
    assert record.steps == (
        EXCLUSIVE,
        replace(SERVE, protocol=3),
        MpsNamespace(CARD.uuid, names[0], 14 * GIB, 25),
        MpsNamespace(CARD.uuid, names[1], 10 * GIB, None),
    )
    assert [held.share.namespace for held in record.held] == names
    assert record.held[0].share.limits == Limits("mpsNamespace", "mpsNamespace")
    assert record.held[1].share.limits == Limits("mpsNamespace", "none")
    other = plan(of("b", part(NS)), record, devices=by_name(NS))
    assert [type(step) for step in steps_to_undo(record, [other])] == [MpsNamespace, MpsNamespace]


UID = "5f0e6f0a-8f1b-4d1c-9a53-0b0f5d1f8a11"


@given(st.text(min_size=1, max_size=80), st.integers(0, 31))
def test_names_of_namespaces_are_short_plain_and_told_apart(uid, position):
    name = namespace_name(ClaimUid(uid), position)
    assert len(name) <= 35
    assert set(name) <= set("0123456789abcdefghijklmnopqrstuvwxyz_")
    assert name != namespace_name(ClaimUid(uid), position + 1)


# What the scheduler counted ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"share_id": None}, r"allocation 0 \(gpu-00000000-mps\) has no shareID"),
        ({"consumed": None}, "has no consumedCapacity.*DRAConsumableCapacity"),
        ({"consumed": Consumed()}, "consumedCapacity.shares is nothing, wanted: 1 or more"),
        ({"consumed": Consumed(Bytes(GIB), 0, 0)}, "shares is 0, wanted: 1 or more"),
        ({"consumed": Consumed(None, 0, 1)}, "memory is nothing, wanted: at least 1Mi"),
        ({"consumed": Consumed(Bytes(0), 0, 1)}, "memory is 0, wanted: at least 1Mi"),
        ({"consumed": Consumed(Bytes(MIB - 1), 0, 1)}, "memory is 1048575, wanted: at least 1Mi"),
        ({"consumed": Consumed(Bytes(GIB), None, 1)}, "computePercent is nothing"),
        ({"consumed": Consumed(Bytes(GIB), 101, 1)}, "computePercent is 101, wanted: 0 to 100"),
        (
            {"consumed": Consumed(Bytes(MEMORY + 1), 0, 1)},
            "wanted: at most 81008Mi, which is what the card has",
        ),
    ],
)
def test_what_is_missing_zero_or_over_the_card_is_refused(changes, said):
    with pytest.raises(ClaimError, match=said):
        plan(of("a", part(MPS, **changes)))


def test_a_turn_needs_no_memory_but_cannot_have_more_than_there_is():
    assert plan(of("a", part(TURNS, None, None))).held[0].share.memory == 0
    with pytest.raises(ClaimError, match="at most 81008Mi"):
        plan(of("a", part(TURNS, MEMORY + MIB)))
    with pytest.raises(ClaimError, match="shares is nothing"):
        plan(of("a", part(TURNS, consumed=Consumed(Bytes(0)))))


@given(st.integers(MIB, MEMORY), st.integers(0, 100))
def test_what_is_enforced_is_never_above_what_was_consumed(memory, percent):
    held = plan(of("a", part(MPS, memory, percent))).held[0]
    if held.share is None:
        assert memory == MEMORY
        assert percent in (0, 100)
        return
    assert 0 < held.share.memory_limit <= memory
    assert held.share.memory_limit % MIB == 0
    assert held.share.percent_limit == (percent if 0 < percent < 100 else None)


# Fitting together --------------------------------------------------------------------------


def test_shares_fit_on_a_card_until_it_is_full():
    first = plan(of("a", part(MPS, 40 * GIB, 50)))
    second = plan(of("b", part(MPS, 30 * GIB, 50)), first)
    with pytest.raises(DeviceHeldError, match=r"9328Mi are left of its memory and 10Gi wanted"):
        plan(of("c", part(MPS, 10 * GIB)), first, second)
    with pytest.raises(DeviceHeldError, match=r"0 % are left of its compute and 1 % wanted"):
        plan(of("c", part(MPS, 9 * GIB, 1)), first, second)
    assert plan(of("c", part(MPS, 9 * GIB)), first, second)
    assert plan(of("c", part(MPS, 9328 * MIB)), first, second)
    with pytest.raises(DeviceHeldError):
        plan(of("c", part(MPS, 9329 * MIB)), first, second)


def test_the_49th_share_is_refused():
    records = [plan(of(str(n), part(MPS, MIB))) for n in range(48)]
    with pytest.raises(DeviceHeldError) as caught:
        plan(of("x", part(MPS, MIB)), *records)
    assert str(caught.value) == (
        "device gpu-00000000-mps has no room for claim team/claim-x:x: all of its 48 shares are "
        "held by claims team/claim-0:0, team/claim-1:1, team/claim-2:2 and 45 more; "
        "`aliquot node status` on the node lists the holders"
    )


def test_a_turn_counts_turns_only():
    first = plan(of("a", part(TURNS, MEMORY)))
    assert plan(of("b", part(TURNS, MEMORY)), first)


def test_shares_of_before_a_smaller_policy_leave_nothing_and_no_less():
    first = plan(of("a", part(MPS, 40 * GIB, 60)), plan(of("b", part(MPS, 30 * GIB, 40))))
    small, _ = shared_of(CARD, modes="[mps]", reserve="60Gi")
    with pytest.raises(DeviceHeldError, match="0 are left of its memory"):
        plan(of("c", part(small, MIB)), first, devices=by_name(small))


def test_two_shares_of_one_card_in_one_claim_are_two_requests():
    record = plan(of("a", part(MPS, 10 * GIB), part(MPS, 20 * GIB, position=1)))
    assert [held.share.memory for held in record.held] == [10 * GIB, 20 * GIB]
    assert record.steps == (EXCLUSIVE, SERVE)
    twice = RequestName("r0")
    with pytest.raises(ClaimError, match=r"request r0 of claim .* got device gpu-00000000-mps m"):
        plan(of("a", part(MPS), part(MPS, position=1, request=twice)))
    with pytest.raises(ClaimError, match="ask for each share by a request of its own"):
        plan(of("a", part(TURNS), part(TURNS, position=1, request=twice)))


def test_shares_of_two_cards_need_two_claims():
    with pytest.raises(ClaimError, match="shares of two cards, gpu-00000000-mps and gpu-00000001"):
        plan(of("a", part(MPS), part(MPS_1, position=1)))
    record = plan(of("a", part(MPS), part(MPS_1, MEMORY, position=1)))
    assert [held.type for held in record.held] == ["mps", "gpu"]
    assert plan(of("a", part(MPS), allocation(whole(OTHER), 1)))
    assert plan(of("a", part(MPS), part(TURNS_1, position=1)))


HOLDERS = {
    "whole": (allocation(whole(CUT)), "the whole card"),
    "share": (part(MPS_CUT), r"a share of 10Gi"),
    "turn": (part(TURNS_CUT), "a turn"),
    "mig": (allocation(PART), "1g.10gb at memory slice 0"),
}


@pytest.mark.parametrize("holds", HOLDERS)
@pytest.mark.parametrize("wants", HOLDERS)
def test_a_card_has_one_shape_at_a_time_and_the_holder_is_named(holds, wants):
    holder = plan(of("a", HOLDERS[holds][0]))
    wanted = of("b", HOLDERS[wants][0])
    if holds == wants and holds in ("share", "turn"):
        assert plan(wanted, holder)
        return
    text = "" if holds == wants else rf" \({HOLDERS[holds][1]}\)"
    with pytest.raises(DeviceHeldError, match=rf"held by claim team/claim-a:a{text} and cannot"):
        plan(wanted, holder)


def test_one_claim_cannot_have_a_card_in_two_shapes():
    with pytest.raises(DeviceConflictError, match="overlaps device gpu-00000000-mps of the same"):
        plan(of("a", part(MPS), allocation(whole(CARD), 1)))


# A share that is all of the card -----------------------------------------------------------


@pytest.mark.parametrize("percent", [0, 100])
def test_a_share_of_everything_is_a_whole_card_without_mps(percent):
    record = plan(of("a", part(MPS, MEMORY, percent)))
    assert (record.steps, record.state) == ((), ClaimState.COMPLETED)
    assert (record.held[0].type, record.held[0].share) == ("gpu", None)
    with pytest.raises(DeviceHeldError, match=r"\(the whole card\)"):
        plan(of("b", part(MPS, MIB)), record)
    mode = ComputeMode.EXCLUSIVE_PROCESS
    assert plan(of("a", part(MPS, MEMORY, percent, compute_mode=mode))).steps == (EXCLUSIVE,)
    assert plan(of("a", replace(wants(MPS, require="hardware"), consumed=ALL))).steps == ()


ALL = Consumed(Bytes(MEMORY), 0, 1)


def test_all_of_the_memory_with_a_cap_is_a_share():
    for capped in (part(MPS, MEMORY, 50), replace(wants(MPS, percent_limit=50), consumed=ALL)):
        held = plan(of("a", capped)).held[0]
        assert (held.type, held.share.percent_limit) == ("mps", 50)
    smaller = replace(wants(MPS, memory_limit=Bytes(GIB)), consumed=ALL)
    assert plan(of("a", smaller)).held[0].share.memory_limit == GIB
    looser = replace(wants(MPS, memory_limit=Bytes(MEMORY)), consumed=ALL)
    assert plan(of("a", looser)).held[0].type == "gpu"


def test_a_share_of_everything_does_not_fit_beside_a_share():
    with pytest.raises(DeviceHeldError, match=r"a share of 10Gi"):
        plan(of("b", part(MPS, MEMORY)), plan(of("a", part(MPS))))


# Configuration -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "changes", "field"),
    [
        (MPS, {"interval": SHORT}, "interval"),
        (TURNS, {"memory_limit": Bytes(GIB)}, "memoryLimit"),
        (TURNS, {"percent_limit": 5}, "computePercentLimit"),
    ],
)
def test_a_config_for_another_kind_of_device_is_refused(device, changes, field):
    with pytest.raises(InvalidConfigError, match=f"^{field}: is asked for device {device.name}"):
        plan(of("a", wants(device, **changes)))


@pytest.mark.parametrize("device", [MPS, TURNS])
def test_shares_have_no_compute_mode_of_their_own(device):
    with pytest.raises(InvalidConfigError, match=r"computeMode: .* only whole cards have it"):
        plan(of("a", part(device, compute_mode=ComputeMode.DEFAULT)))


@pytest.mark.parametrize("device", [whole(CARD), PART])
def test_a_whole_card_or_partition_has_no_limits_of_shares(device):
    for wishes in ({"interval": LONG}, {"memory_limit": Bytes(GIB)}, {"percent_limit": 5}):
        wished = wants(MPS, **wishes).wishes
        with pytest.raises(InvalidConfigError, match="name the requests that the config is for"):
            plan(of("a", allocation(device, wishes=wished)))
    demanding = wants(MPS, require="hardware").wishes
    assert plan(of("a", allocation(device, wishes=demanding)))


def test_a_share_of_everything_takes_no_interval():
    with pytest.raises(InvalidConfigError, match="interval"):
        plan(of("a", replace(wants(MPS, interval=LONG), consumed=ALL)))


@pytest.mark.parametrize(
    ("device", "percent", "require", "said"),
    [
        (MPS, 0, "mpsCooperative", None),
        (MPS, 0, "mpsProcess", "memory is limited by mpsCooperative"),
        (EQUAL, 25, "mpsProcess", None),
        (EQUAL, 25, "mpsNamespace", "memory is limited by mpsProcess and compute is limited by m"),
        (NS, 25, "mpsNamespace", None),
        (NS, 25, "cgroup", "memory is limited by mpsNamespace; mpsProcess needs equal"),
        (NS, 25, "cgroup", r"cgroup that driver and cgroup v2 \(here: not looked at yet\), hardw"),
        (MPS, 0, "cgroup", r"\(here: the NVIDIA driver is 580.105.08, R615 has it first\)"),
        (POD, 25, "cgroup", None),
        (POD, 0, "cgroup", None),
        (POD, 25, "hardware", r"by cgroup and compute is limited by mpsN.* and cgroup v2, hardw"),
        (POD_V2, 0, "cgroup", None),
        (POD_V2, 25, "cgroup", "but compute is limited by mpsCooperative"),
        (NS, 25, "hardware", "and compute is limited by mpsNamespace"),
        (TURNS, 0, "mpsCooperative", "memory is limited by none and compute is limited by none"),
    ],
)
def test_a_demanded_level_is_met_or_refused_with_what_there_is(device, percent, require, said):
    size = 20 * GIB if device is EQUAL else 10 * GIB
    wanted = of("a", part(device, size, percent, wishes=wants(MPS, require=require).wishes))
    if said is None:
        assert plan(wanted, devices=by_name(device))
        return
    with pytest.raises(ClaimError, match=rf"(?s)^(?=.*worth at least {require} ).*{said}"):
        plan(wanted, devices=by_name(device))


def test_a_limit_below_the_daemons_own_is_only_cooperative():
    wished = wants(MPS, memory_limit=Bytes(GIB), percent_limit=10).wishes
    held = plan(of("a", part(EQUAL, 20 * GIB, 25, wishes=wished)), devices=by_name(EQUAL)).held[0]
    assert (held.share.memory_limit, held.share.percent_limit) == (GIB, 10)
    assert held.share.limits == Limits("mpsCooperative", "mpsCooperative")


# Time slices -------------------------------------------------------------------------------


def test_a_turn_changes_nothing_unless_an_interval_is_wanted():
    record = plan(of("a", part(TURNS)))
    assert (record.steps, record.state) == ((), ClaimState.COMPLETED)
    assert record.held[0].share.limits == Limits("none", "none")
    asked = plan(of("a", wants(TURNS, interval=LONG)))
    assert asked.steps == (SetTimeSlice(CARD.uuid, LONG),)
    _, by_policy = shared_of(CARD, modes="[timeslice]", timeSlice="{interval: Short}")
    assert plan(of("a", part(by_policy)), devices=by_name(by_policy)).steps == (
        SetTimeSlice(CARD.uuid, SHORT),
    )


def test_who_joins_takes_the_interval_that_is_set_and_another_is_refused():
    first = plan(of("a", wants(TURNS, interval=LONG)))
    second = plan(of("b", part(TURNS)), first)
    assert second.steps == (SetTimeSlice(CARD.uuid, LONG),)
    assert steps_to_undo(first, [second]) == ()
    assert plan(of("c", wants(TURNS, interval=LONG)), first).steps == first.steps
    with pytest.raises(DeviceConflictError, match="SHORT is asked for, but claim team/claim-a:a"):
        plan(of("c", wants(TURNS, interval=SHORT)), first)
    plain = plan(of("d", part(TURNS)))
    with pytest.raises(DeviceConflictError, match=r"claim-d:d has a turn .* interval DEFAULT"):
        plan(of("c", wants(TURNS, interval=SHORT)), plain)
    default = wants(TURNS, interval=TimeSliceInterval.DEFAULT)
    assert plan(of("c", default), plain).steps == ()


def test_a_node_that_cannot_set_intervals_says_so():
    _, fixed = shared_of(CARD, SharingFacts(), modes="[timeslice]", timeSlice="{interval: Short}")
    devices = by_name(fixed)
    assert plan(of("a", part(fixed)), devices=devices).steps == ()
    default = wants(fixed, interval=TimeSliceInterval.DEFAULT)
    assert plan(of("a", default), devices=devices).steps == ()
    with pytest.raises(InvalidConfigError, match=r"interval: LONG .* cannot set time slices"):
        plan(of("a", wants(fixed, interval=LONG)), devices=devices)


# Others on the card ------------------------------------------------------------------------


def test_a_card_that_processes_use_already_is_not_shared():
    running = {CARD.uuid: [GpuProcess(42, None), GpuProcess(43, None)]}
    for device in (MPS, TURNS):
        with pytest.raises(DeviceConflictError, match="belong to no claim: 42, 43; no limit"):
            plan(of("a", part(device)), processes=running)
    assert plan(of("a", part(MPS)), plan(of("b", part(MPS))), processes=running)
    assert plan(of("a", part(MPS_1)), processes=running)
    assert plan(of("a", part(MPS, MEMORY)), processes=running)


def test_admin_access_neither_counts_nor_needs_a_share():
    admin = plan(of("a", part(MPS, admin=True, share_id=None, consumed=None)))
    assert (admin.steps, admin.held[0].share) == ((), None)
    records: list[Record] = [admin]
    assert plan(of("b", part(MPS, MEMORY)), *records).held[0].type == "gpu"
