"""Shared devices: what they are, where they are offered, and how they are published."""

from dataclasses import replace

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.policy import NodePolicy
from driver.model.gpu import MigMode
from driver.model.shares import Limits, MpsFacts, SharingFacts
from driver.model.units import Bytes
from driver.plan.allocatable import allocatable, node_devices
from driver.plan.layout import (
    COUNTED_SHARES,
    COUNTERS_BESIDE_DEVICES,
    EVERYTHING,
    UNSORTED,
    cluster_features,
    is_kept_out,
    keep_shared,
    offered_modes,
)
from driver.plan.resources import driver_resources
from driver.plan.sharing import without_room
from kubeletplugin.publish_checks import check_pool
from tests.plan.builders import POOL, by_name, cuttable, gpu, inventory, partition, switched, whole
from tests.plan.shared import GIB, MEMORY, MIB, NEW_DRIVER, PODS, V2, V3, policy, shared_of
from tests.plan.test_partition_layout import as_object, keys

KEPT = frozenset({"taints", "counters", "sharing"})
NOW = cluster_features(KEPT, 36, 3)
OLD = cluster_features(KEPT, 35, 4)  # and 1.36.0 to 1.36.2
OLDEST = cluster_features(KEPT, 34, 4)
MODES = ("gpu", "mps", "timeslice", "mig")
ALL = policy()


def publish(*cards, features=NOW, rule=ALL, facts=V2, held=frozenset()):
    node = inventory(*cards)
    devices = allocatable(node, rule, features=features, sharing=facts)
    kept = [each for each in node_devices(node, rule, sharing=facts) if each.name in held]
    devices = (*devices, *(each for each in kept if each not in devices))
    pool = driver_resources(devices, node, {}, pool=POOL, features=features, held=held)
    check_pool(pool)
    return pool


def entries(pool):
    return {device["name"]: device for part in pool.slices for device in part.devices}


# What a card has to share ------------------------------------------------------------------


def test_a_claim_without_numbers_gets_all_of_the_card_by_default():
    mps, turns = shared_of()
    assert (mps.name, turns.name) == ("gpu-00000000-mps", "gpu-00000000-timeslice")
    assert (mps.memory, mps.default_memory, mps.default_percent) == (MEMORY, MEMORY, 0)
    assert (mps.shares, mps.equal, mps.whole_by_default) == (48, False, True)
    assert (mps.serve.memory_limit, mps.serve.compute_percent, mps.serve.protocol) == (
        MEMORY,
        100,
        2,
    )
    assert (turns.memory, turns.shares, turns.interval, turns.settable) == (MEMORY, 48, None, True)


def test_the_policy_sets_reserve_default_and_turns():
    mps, turns = shared_of(defaultShares="4", reserve="1Gi", timeSlice="{replicas: 3}")
    left, quarter = MEMORY - GIB, (MEMORY - GIB) // 4 // MIB * MIB
    assert (mps.memory, mps.default_memory, mps.default_percent) == (left, quarter, 25)
    assert not mps.whole_by_default
    assert (mps.serve.memory_limit, turns.memory, turns.shares) == (left, left, 3)


@pytest.mark.parametrize(
    ("size", "shares", "compute"),
    [
        ("{memory: 20Gi, computePercent: 25}", 3, "mpsProcess"),
        ("{memory: 1Gi, computePercent: 30}", 3, "mpsProcess"),
        ("{memory: 20Gi}", 3, "mpsCooperative"),
        ("{memory: 1Mi}", 48, "mpsCooperative"),
    ],
)
def test_equal_shares_are_as_many_as_fit(size, shares, compute):
    mps, _ = shared_of(shareSize=size)
    assert (mps.equal, mps.shares, mps.limits) == (True, shares, Limits("mpsProcess", compute))
    assert mps.serve.memory_limit == mps.default_memory
    assert mps.serve.compute_percent == (mps.default_percent or 100)


@pytest.mark.parametrize(
    ("card", "rule"),
    [
        pytest.param(gpu(0, compute_capability=(6, 1)), {}, id="too-old"),
        pytest.param(gpu(0, memory=Bytes(0)), {}, id="no-memory-of-its-own"),
        pytest.param(gpu(0), {"reserve": "90Gi"}, id="all-reserved"),
        pytest.param(gpu(0), {"shareSize": "{memory: 80Gi}"}, id="smaller-than-a-share"),
        pytest.param(gpu(0, memory=Bytes(560 * MIB)), {"defaultShares": "48"}, id="tiny-shares"),
    ],
)
def test_a_card_that_cannot_be_limited_is_still_used_in_turns(card, rule):
    found = node_devices(inventory(card), policy(**rule), sharing=V2)
    assert [each.name for each in found if each.name.endswith("-mps")] == []
    assert [each.name for each in found if each.name.endswith("slice")]


@pytest.mark.parametrize(
    ("card", "rule", "why"),
    [
        (
            gpu(0),
            {"reserve": "90Gi"},
            "gpus[0].reserve is 90Gi of 81008Mi that they could have",
        ),
        (
            gpu(0),
            {"reserve": "81007Mi", "modes": "[timeslice]"},
            "gpus[0].reserve is 81007Mi of 81008Mi that they could have",
        ),
        (
            gpu(0),
            {"reserve": "1Gi", "shareSize": "{memory: 80Gi}"},
            "gpus[0].shareSize.memory is 80Gi, and they have 79984Mi",
        ),
        (
            gpu(0, memory=Bytes(560 * MIB)),
            {"defaultShares": "48"},
            "gpus[0].defaultShares is 48 of 9Mi, less than 1Mi for each",
        ),
    ],
)
def test_a_rule_that_leaves_no_room_for_shares_is_named_with_the_card(card, rule, why):
    (found,) = without_room(inventory(card), policy(**rule))
    assert found == (
        card.uuid,
        f"{card.product} at {card.pci} has no room for shares: {why}; lower it, or give the card "
        "a rule of its own",
    )


@pytest.mark.parametrize(
    ("card", "rule"),
    [
        pytest.param(gpu(0), {}, id="no-numbers"),
        pytest.param(gpu(0), {"reserve": "81006Mi"}, id="just-enough"),
        pytest.param(gpu(0), {"reserve": "90Gi", "modes": "[gpu, mig]"}, id="not-shared"),
        pytest.param(gpu(0, memory=Bytes(0)), {"reserve": "1Gi"}, id="none-of-its-own"),
        pytest.param(
            gpu(0), {"shareSize": "{memory: 80Gi}", "modes": "[timeslice]"}, id="turns-only"
        ),
        pytest.param(gpu(0), {"shareSize": "{memory: 81008Mi}"}, id="one-share"),
        pytest.param(gpu(0), {"defaultShares": "48"}, id="parts"),
    ],
)
def test_a_rule_that_leaves_room_is_none(card, rule):
    assert list(without_room(inventory(card), policy(**rule))) == []
    assert list(without_room(inventory(card), NodePolicy())) == []


@pytest.mark.parametrize(
    ("facts", "driver", "protocol", "limits"),
    [
        (V3, NEW_DRIVER, 3, "mpsNamespace"),
        (V3, "580.105.08", 2, "mpsCooperative"),
        (V3, "", 2, "mpsCooperative"),
        (V2, NEW_DRIVER, 2, "mpsCooperative"),
        (SharingFacts(), NEW_DRIVER, 2, "mpsCooperative"),
    ],
)
def test_namespaces_need_both_the_control_program_and_the_driver(facts, driver, protocol, limits):
    mps, _ = shared_of(facts=facts, driver=driver)
    assert (mps.serve.protocol, mps.limits) == (protocol, Limits(limits, limits))


@pytest.mark.parametrize(
    ("facts", "driver", "memory", "why"),
    [
        (PODS, NEW_DRIVER, "cgroup", ""),
        (PODS, "610.10.01", "mpsCooperative", "the NVIDIA driver is 610.10.01, R615 has it first"),
        (PODS, "", "mpsCooperative", "the NVIDIA driver is unknown, R615 has it first"),
        (V3, NEW_DRIVER, "mpsNamespace", "not looked at yet"),
        (replace(V3, no_cgroup="no v2"), NEW_DRIVER, "mpsNamespace", "no v2"),
    ],
)
def test_memory_is_limited_by_cgroup_where_driver_and_node_can(facts, driver, memory, why):
    mps, _ = shared_of(facts=facts, driver=driver)
    compute = "mpsNamespace" if driver == NEW_DRIVER else "mpsCooperative"
    assert (mps.limits, mps.no_cgroup) == (Limits(memory, compute), why)


def test_compute_is_never_limited_by_cgroup():
    equal, _ = shared_of(
        facts=replace(V2, no_cgroup=""),
        driver=NEW_DRIVER,
        shareSize="{memory: 20Gi, computePercent: 25}",
    )
    assert equal.limits == Limits("cgroup", "mpsProcess")


# Where shared devices are offered ----------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "version", "more"),
    [
        (KEPT, (34, 9), {COUNTERS_BESIDE_DEVICES, UNSORTED}),
        (KEPT, (35, 9), {UNSORTED}),
        (KEPT, (36, 0), set()),
        (KEPT, (36, 2), set()),
        (KEPT, (36, 3), {COUNTED_SHARES}),
        (KEPT, (37, 0), {COUNTED_SHARES}),
        (frozenset(), (37, 0), {COUNTED_SHARES}),
    ],
)
def test_what_a_cluster_can_do_is_its_version_and_what_it_keeps(kept, version, more):
    assert cluster_features(kept, *version) == kept | more


def test_a_current_cluster_with_all_gates_on_can_do_everything():
    assert NOW == EVERYTHING


ONLY_COUNTERS = NOW - {"sharing"}
ONLY_SHARING = NOW - {"counters"}


@pytest.mark.parametrize(
    ("modes", "features", "mps", "offered"),
    [
        (MODES, NOW, True, {*MODES}),
        (MODES, NOW, False, {"gpu", "timeslice", "mig"}),
        (MODES, OLD, True, {"gpu", "mig"}),
        (MODES, ONLY_COUNTERS, True, {"gpu", "mig"}),
        (("mps", "gpu", "mig"), OLD, True, {"mps"}),
        (("mps", "gpu", "mig"), OLD, False, {"gpu", "mig"}),
        (("mps", "gpu", "mig"), ONLY_COUNTERS, True, {"gpu", "mig"}),
        (("mps", "gpu"), ONLY_SHARING, True, {"mps"}),
        (("timeslice", "mps"), OLDEST, True, {"timeslice"}),
        (("gpu", "mps"), frozenset(), True, {"gpu"}),
        (("mps",), frozenset(), True, set()),
        ((), NOW, True, set()),
    ],
)
def test_where_shares_cannot_stand_beside_others_the_first_mode_decides(
    modes, features, mps, offered
):
    assert offered_modes(modes, features, mps=mps) == offered


def test_a_card_in_mig_mode_is_not_shared_unless_the_mode_may_change():
    def names(**rule):
        on = cuttable(0, mig_mode=MigMode(current=True, pending=True))
        found = allocatable(inventory(on), policy(**rule), sharing=V2)
        return [each.name for each in found if "mig" not in each.name]

    assert names(migModeToggle="never") == []
    assert len(names()) == 3


def test_a_card_changes_its_shape_only_when_it_is_free_where_counters_do_not_see_to_it():
    card = cuttable(0)
    mps, turns = shared_of(card)
    all_of_it, part, other = whole(card), partition(card, "1g.10gb"), whole(gpu(1))
    for held in (mps, turns):
        for device in (all_of_it, part, mps, turns):
            assert is_kept_out(device, [held], OLD) is (device is not held)
            assert not is_kept_out(device, [held], NOW)
    assert is_kept_out(mps, [all_of_it], OLD)
    assert is_kept_out(all_of_it, [part], frozenset())
    assert not is_kept_out(all_of_it, [part], OLD)
    assert not is_kept_out(part, [all_of_it], frozenset())
    assert not is_kept_out(mps, [other], OLD)


def test_a_changed_policy_leaves_cards_alone_that_are_shared():
    rules = ({"modes": "[mps]"}, {"modes": "[mps]", "reserve": "1Gi"})
    cards = [gpu(0), gpu(1)]
    node = inventory(*cards)
    before, after = (node_devices(node, policy(**rule), sharing=V2) for rule in rules)
    busy = {cards[0].uuid}
    kept, old, new = (
        {str(each.name): each for each in found}
        for found in (keep_shared(after, by_name(*before), busy), before, after)
    )
    assert kept["gpu-00000000-mps"] == old["gpu-00000000-mps"] != new["gpu-00000000-mps"]
    assert kept["gpu-00000001-mps"] == new["gpu-00000001-mps"]
    assert kept["gpu-00000000"] == new["gpu-00000000"]
    assert keep_shared(after, {}, busy) == after


# How they are published --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "features", "rule"),
    [
        ("1.34.0", OLDEST, policy(modes="[mps, gpu]")),
        ("1.35.0", OLD, policy(modes="[mps, gpu]")),
        ("1.37.0", NOW, ALL),
        ("1.37.0", NOW, policy(shareSize="{memory: 20Gi, computePercent: 25}")),
    ],
)
def test_what_is_published_passes_the_strict_schema(version, features, rule):
    pool = publish(cuttable(0), features=features, rule=rule)
    for part in pool.slices:
        kubernetes_validate.validate(as_object(part, pool), version, strict=True)


def test_everything_stands_side_by_side_whole_and_shared_cards_first():
    pool = publish(cuttable(0), cuttable(1))
    assert [device["name"] for device in pool.slices[0].devices] == [
        "gpu-00000001",
        "gpu-00000000",
        "gpu-00000000-mps",
        "gpu-00000001-mps",
        "gpu-00000000-timeslice",
        "gpu-00000001-timeslice",
    ]
    found = entries(pool)
    everything = found["gpu-00000000"]["consumesCounters"]
    for name in ("gpu-00000000-mps", "gpu-00000000-timeslice"):
        assert found[name]["consumesCounters"] == everything
        assert found[name]["allowMultipleAllocations"] is True
    assert keys(pool)[-1] == "90-counters-00"


def test_what_shares_divide_among_themselves():
    found = entries(publish(gpu(0)))
    assert found["gpu-00000000-mps"]["capacity"] == {
        "memory": {
            "value": "81008Mi",
            "requestPolicy": {
                "default": "81008Mi",
                "validRange": {"min": "1Mi", "max": "81008Mi", "step": "1Mi"},
            },
        },
        "computePercent": {
            "value": "100",
            "requestPolicy": {
                "default": "0",
                "validRange": {"min": "0", "max": "100", "step": "1"},
            },
        },
        "shares": {"value": "48", "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }
    turn = found["gpu-00000000-timeslice"]["capacity"]
    assert turn.keys() == {"memory", "shares"}
    assert turn["memory"]["requestPolicy"] == {
        "default": "0",
        "validRange": {"min": "0", "max": "81008Mi", "step": "1Mi"},
    }
    no_memory = entries(publish(gpu(0, memory=Bytes(0))))["gpu-00000000-timeslice"]["capacity"]
    assert no_memory.keys() == {"shares"}


def test_equal_shares_have_one_size():
    rule = policy(shareSize="{memory: 20Gi, computePercent: 25}")
    found = entries(publish(gpu(0), rule=rule))["gpu-00000000-mps"]["capacity"]
    assert found["memory"]["requestPolicy"] == {"default": "20Gi", "validValues": ["20Gi"]}
    assert found["computePercent"]["requestPolicy"] == {"default": "25", "validValues": ["25"]}
    assert found["shares"]["value"] == "3"
    rule = policy(shareSize="{memory: 20Gi}")
    found = entries(publish(gpu(0), rule=rule))["gpu-00000000-mps"]["capacity"]
    assert found["computePercent"]["requestPolicy"]["validRange"]["max"] == "100"


def test_what_limits_are_worth_is_published():
    found = entries(publish(switched(0)))
    mps, turn = (found[f"gpu-00000000-{kind}"]["attributes"] for kind in ("mps", "timeslice"))
    assert mps["type"] == {"string": "mps"}
    assert mps["memoryLimit"] == mps["computeLimit"] == {"string": "mpsCooperative"}
    assert (mps["mpsProtocol"], mps["multiUser"]) == ({"int": 2}, {"bool": True})
    assert mps["nvlinkGroup"] == {"string": "nvswitch"}
    assert turn["memoryLimit"] == turn["computeLimit"] == {"string": "none"}
    assert mps["uuid"] == turn["uuid"] == found["gpu-00000000"]["attributes"]["uuid"]
    for device in found.values():
        assert len(device["attributes"]) + len(device["capacity"]) <= 32


def marked(pool):
    return {name for name, each in entries(pool).items() if "wholeCard" in each["attributes"]}


def test_one_device_of_a_card_stands_for_the_whole_card():
    assert marked(publish(gpu(0))) == {"gpu-00000000"}
    assert marked(publish(gpu(0), rule=policy(modes="[mps, timeslice]"))) == {"gpu-00000000-mps"}
    quarters = policy(modes="[mps, timeslice]", defaultShares="4")
    assert marked(publish(gpu(0), rule=quarters)) == set()
    assert marked(publish(gpu(0), rule=policy(modes="[mps, gpu]"), features=OLD)) == {
        "gpu-00000000-mps"
    }


def test_kubernetes_1_35_has_shares_without_counters_on_cards_of_their_own():
    pool = publish(cuttable(0), features=OLD, rule=policy(modes="[mps, gpu, mig]"))
    assert keys(pool) == ["00-cards-00"]
    assert entries(pool).keys() == {"gpu-00000000-mps"}
    assert "consumesCounters" not in entries(pool)["gpu-00000000-mps"]


def test_kubernetes_1_34_has_each_shared_device_alone_in_its_resourceslice():
    pool = publish(gpu(1), gpu(0), features=OLDEST, rule=policy(modes="[mps]"))
    assert keys(pool) == ["05-00-gpu-00000000-mps", "05-01-gpu-00000001-mps"]
    held = frozenset({"gpu-00000000-mps"})
    pool = publish(cuttable(0), features=OLDEST, held=held)
    assert len(pool.slices[0].devices) == 1
    assert "gpu-00000000-mps" not in {d["name"] for d in pool.slices[1].devices}


def test_a_held_share_stays_where_the_cluster_forgot_what_shares_are():
    held = frozenset({"gpu-00000000-mps"})
    pool = publish(gpu(0), features=frozenset({"taints"}), held=held)
    device = entries(pool)["gpu-00000000-mps"]
    assert device.keys() == {"name", "attributes"}


def test_a_card_that_is_only_shared_needs_no_counters():
    pool = publish(gpu(0), rule=policy(modes="[mps]"))
    assert keys(pool) == ["00-cards-00"]


RULES = st.lists(st.sampled_from(MODES), unique=True).map(lambda modes: f"[{', '.join(modes)}]")
CLUSTERS = st.sampled_from(
    [NOW, OLD, OLDEST, ONLY_COUNTERS, ONLY_SHARING, frozenset({"taints"}), frozenset()]
)


@given(RULES, CLUSTERS, st.booleans())
def test_no_cluster_gets_two_shapes_of_a_card_that_nothing_keeps_apart(modes, features, mps):
    """Two devices of one card overlap; either both consume its counters, or there is one."""
    facts = SharingFacts(MpsFacts()) if mps else SharingFacts()
    cards = [cuttable(0), gpu(1)]
    pool = publish(*cards, features=features, rule=policy(modes=modes), facts=facts)
    for card in ("gpu-00000000", "gpu-00000001"):
        found = [each for name, each in entries(pool).items() if name.startswith(card)]
        counted = [each for each in found if "consumesCounters" in each]
        assert len(found) <= 1 or counted == found
        for each in counted:
            assert "allowMultipleAllocations" not in each or COUNTED_SHARES in features
    names = by_name(*node_devices(inventory(*cards), policy(modes=modes), sharing=facts))
    assert entries(pool).keys() <= names.keys()
