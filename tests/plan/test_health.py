import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.policy import NodePolicy
from driver.errors import StateError
from driver.model.health import CardHealth, Repair
from driver.model.readings import CardReading, XidEvent
from driver.plan.health import (
    action_name,
    after_boot,
    describe,
    from_dict,
    next_health,
    taints,
    to_dict,
)
from tests.plan.builders import gpu

POLICY = NodePolicy()
GPU = gpu().uuid
GOOD = CardReading(GPU, lost=False, recovery_action=0, ecc_uncorrected=0, regular=True)
EXTRA = replace(GOOD, regular=False)  # right after an event, or when all is enumerated anew
SILENT = CardReading(GPU, lost=False)  # an old card that tells none of it
LOST = CardReading(GPU, lost=True)
FAILED = CardReading(GPU, lost=False, problem="nvmlDeviceGetFieldValues: timeout")


def xid(number):
    return XidEvent(GPU, number)


def after(*seen, start=None):
    health = start or CardHealth()
    for each in seen:
        health = next_health(health, each, POLICY)
    return health


def keys(health):
    return {taint["key"].partition("/")[2]: taint["value"] for taint in taints(health, POLICY)}


def reset_asked(action=1):
    return replace(GOOD, recovery_action=action)


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        pytest.param([GOOD], {}, id="good"),
        pytest.param([SILENT], {}, id="a-card-that-tells-nothing"),
        pytest.param([LOST], {"lost": "true"}, id="lost"),
        pytest.param([LOST, GOOD], {}, id="lost-and-back"),
        pytest.param([LOST, FAILED], {}, id="lost-and-half-back"),
        pytest.param([xid(79)], {"xid": "79"}, id="xid"),
        pytest.param([xid(79), xid(48)], {"xid": "79"}, id="the-first-xid-is-the-cause"),
        pytest.param([xid(48), xid(31)], {"xid": "48"}, id="a-harmless-xid-clears-nothing"),
        pytest.param([xid(31)], {}, id="harmless"),
        pytest.param([xid(999)], {}, id="unknown-xid"),
        pytest.param([XidEvent(None, 79)], {}, id="xid-of-no-card"),
        pytest.param([XidEvent(GPU, None)], {}, id="event-without-xid"),
        pytest.param([XidEvent(GPU, 48, 2, 0)], {"xid": "48"}, id="xid-of-a-partition"),
        pytest.param([xid(48), GOOD], {"xid": "48"}, id="one-good-reading-may-be-too-early"),
        pytest.param([xid(48), GOOD, GOOD], {}, id="two-good-readings"),
        pytest.param([xid(48), EXTRA, EXTRA, EXTRA, GOOD], {"xid": "48"}, id="within-moments"),
        pytest.param([xid(48), EXTRA, GOOD, EXTRA, GOOD], {}, id="with-others-between"),
        pytest.param([xid(48), GOOD, xid(48), GOOD], {"xid": "48"}, id="again"),
        pytest.param([xid(48), GOOD, FAILED, GOOD], {"xid": "48"}, id="not-in-a-row"),
        pytest.param([xid(48), SILENT, SILENT, SILENT], {"xid": "48"}, id="no-recovery-action"),
        pytest.param([xid(48), LOST, SILENT], {}, id="lost-and-reset"),
        pytest.param([reset_asked()], {"recovery": "GpuReset"}, id="recovery"),
        pytest.param([reset_asked(99)], {"recovery": "99"}, id="unknown-recovery"),
        pytest.param([reset_asked(), GOOD], {}, id="recovered"),
        pytest.param([reset_asked(), FAILED], {"recovery": "GpuReset"}, id="recovery-unread"),
        pytest.param(
            [xid(48), reset_asked(2)], {"recovery": "NodeReboot", "xid": "48"}, id="both"
        ),
        pytest.param([xid(48), reset_asked(), GOOD], {}, id="reset-clears-the-xid-at-once"),
        pytest.param([replace(GOOD, ecc_uncorrected=3)], {"ecc": "uncorrected"}, id="ecc"),
        pytest.param(
            [replace(GOOD, ecc_uncorrected=3), FAILED], {"ecc": "uncorrected"}, id="ecc-unread"
        ),
        pytest.param([replace(GOOD, ecc_uncorrected=3), GOOD], {}, id="ecc-reset"),
        pytest.param([replace(GOOD, remap_pending=True)], {"retired": "reset"}, id="remap"),
        pytest.param([replace(GOOD, retired_pending=True)], {"retired": "reset"}, id="retired"),
        pytest.param(
            [replace(GOOD, remap_pending=True, remap_failed=True)],
            {"retired": "replace"},
            id="no-spare-rows",
        ),
        pytest.param(
            [replace(GOOD, remap_pending=True), FAILED], {"retired": "reset"}, id="remap-unread"
        ),
        pytest.param(
            [replace(GOOD, remap_pending=True), replace(FAILED, remap_pending=False)],
            {},
            id="remap-read",
        ),
        pytest.param([replace(GOOD, remap_pending=True), GOOD], {}, id="remapped"),
    ],
)
def test_what_is_seen_becomes_taints_and_goes_with_the_fault(seen, wanted):
    health = after(*seen)
    assert keys(health) == wanted
    assert health.healthy is (not wanted)


def test_the_policy_adds_xids_to_skip_and_names_the_effect():
    policy = NodePolicy(ignored_xids=POLICY.ignored_xids | {94}, taint_effect="NoExecute")
    assert next_health(CardHealth(), xid(94), policy) == CardHealth()
    assert taints(CardHealth(lost=True), policy, "example.com") == [
        {"key": "example.com/lost", "value": "true", "effect": "NoExecute"}
    ]


def test_a_device_never_has_more_than_four_taints():
    worst = CardHealth(lost=True, xid=48, recovery_action=1, ecc=True, repair=Repair.RESET)
    assert list(keys(worst)) == ["lost", "recovery", "xid", "ecc"]


def test_a_boot_clears_what_was_of_the_boot_before():
    before = after(xid(48), replace(LOST))
    assert after_boot(before) == CardHealth(lost=True)


def test_a_card_that_cannot_be_read_is_not_called_faulty():
    health = after(FAILED)
    assert health.healthy
    assert describe(health) == "could not be read: nvmlDeviceGetFieldValues: timeout"


def test_what_is_wrong_is_told_with_what_helps():
    worst = CardHealth(lost=True, xid=48, recovery_action=1, ecc=True, repair=Repair.REPLACE)
    assert describe(worst) == (
        "the card is lost: it needs a reset, or its node a reboot; the driver asks for GpuReset; "
        "XID 48; uncorrected memory errors since the last reset; "
        "no spare memory rows are left: replace the card"
    )
    assert describe(CardHealth(repair=Repair.RESET)).startswith("memory was retired: reset")
    assert describe(CardHealth()) == ""
    assert action_name(5) == "RecoverImexDomain"


READINGS = st.builds(
    CardReading,
    gpu=st.just(GPU),
    lost=st.booleans(),
    recovery_action=st.none() | st.integers(0, 6),
    ecc_uncorrected=st.none() | st.integers(0, 2),
    remap_pending=st.none() | st.booleans(),
    remap_failed=st.none() | st.booleans(),
    retired_pending=st.none() | st.booleans(),
    problem=st.none() | st.text(max_size=3),
)
EVENTS = st.builds(
    XidEvent, gpu=st.none() | st.just(GPU), xid=st.none() | st.sampled_from([13, 48, 79, 999])
)


@given(st.lists(READINGS | EVENTS))
def test_any_history_survives_a_restart_and_ends_with_the_fault(seen):
    health = after(*seen)
    assert from_dict(json.loads(json.dumps(to_dict(health)))) == health
    assert after(GOOD, GOOD, start=health) == CardHealth()


def test_health_of_an_earlier_version_lacks_fields_and_of_a_later_one_has_more():
    assert from_dict({"xid": 48, "colour": "red"}) == CardHealth(xid=48)


@pytest.mark.parametrize(
    ("key", "value"),
    [("lost", 1), ("xid", "48"), ("xid", True), ("calm", None), ("repair", "soon"), ("repair", 1)],
)
def test_health_that_cannot_be_trusted_names_its_field(key, value):
    with pytest.raises(StateError, match=f"health of a card: {key}: got"):
        from_dict({key: value})
