"""How cards that are offered in several shapes are laid out over ResourceSlices."""

import kubernetes_validate
import pytest

from driver.plan.allocatable import allocatable
from driver.plan.layout import COUNTERS_BESIDE_DEVICES, UNSORTED
from driver.plan.resources import driver_resources
from kubeletplugin.publish_checks import check_pool
from tests.plan.builders import POOL, cuttable, gpu, inventory
from tests.plan.test_partitions import BOARDS, BOTH

NEW = frozenset({"taints", "counters"})
UNORDERED = NEW | {UNSORTED}  # 1.35
OLD = NEW | {COUNTERS_BESIDE_DEVICES}  # Kubernetes 1.34


def publish(*cards, features=NEW, policy=BOTH, taints=None, held=frozenset()):
    node = inventory(*cards)
    devices = allocatable(node, policy, features=features)
    found = driver_resources(devices, node, taints or {}, pool=POOL, features=features, held=held)
    check_pool(found)
    return found


def keys(pool):
    return [part.key for part in pool.slices]


def as_object(part, pool):
    spec = {
        "driver": "gpu.aliquot.dev",
        "nodeName": POOL,
        "pool": {"name": POOL, "generation": 1, "resourceSliceCount": len(pool.slices)},
    }
    if part.devices:
        spec["devices"] = list(part.devices)
    if part.shared_counters:
        spec["sharedCounters"] = list(part.shared_counters)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": part.key},
        "spec": spec,
    }


@pytest.mark.parametrize("board", ["a30", "h100-80gb"])
@pytest.mark.parametrize(
    ("version", "features"), [("1.34.0", OLD), ("1.35.0", UNORDERED), ("1.37.0", NEW)]
)
def test_what_is_published_passes_the_strict_schema(board, version, features):
    """Of one card: checking takes long, and every card is published alike."""
    pool = publish(cuttable(0, board), features=features)
    for part in pool.slices:
        kubernetes_validate.validate(as_object(part, pool), version, strict=True)


def test_whole_cards_stand_first_then_a_run_for_each_profile_then_the_counters():
    pool = publish(*(cuttable(n) for n in range(9)))
    assert keys(pool) == [
        "00-cards-00",
        "10-00-1g-10gb-00",
        "10-01-1g-20gb-00",
        "10-02-2g-20gb-00",
        "10-03-3g-40gb-00",
        "10-04-4g-40gb-00",
        "10-05-7g-80gb-00",
        "10-06-1g-10gb-me-00",
        "90-counters-00",
        "90-counters-01",
    ]
    assert keys(pool) == sorted(keys(pool))
    assert [len(part.shared_counters) for part in pool.slices[-2:]] == [8, 1]


def test_where_resourceslices_have_no_order_one_holds_all_partitions_of_its_cards():
    """Whichever comes first, the smallest partition that fits is taken before larger ones."""
    pool = publish(*(cuttable(n) for n in range(5)), features=UNORDERED)
    assert keys(pool) == ["00-cards-00", "10-00-00", "10-01-00", "10-02-00", "90-counters-00"]
    assert [len(part.devices) for part in pool.slices] == [5, 50, 50, 25, 0]
    ordered = publish(*(cuttable(n) for n in range(5)))
    assert sorted(names(pool)) == sorted(names(ordered))
    for part in pool.slices[1:4]:
        cards = {name.split("-mig-")[0] for name in of(part)}
        assert len(cards) == len(of(part)) / 25
        assert (
            of(part)
            == [name for name in names(ordered) if name.split("-mig-")[0] in cards][len(cards) :]
        )


def names(pool):
    return [name for part in pool.slices for name in of(part)]


def of(part):
    return [device["name"] for device in part.devices]


def test_a_run_goes_on_in_another_resourceslice():
    pool = publish(*(cuttable(n) for n in range(16)))
    sizes = {part.key: len(part.devices) for part in pool.slices if "1g-10gb-0" in part.key}
    assert sizes == {"10-00-1g-10gb-00": 64, "10-00-1g-10gb-01": 48}


def test_kubernetes_1_34_gets_a_resourceslice_a_card_with_its_counters():
    pool = publish(gpu(0, mig_mode=None), cuttable(1), cuttable(2), features=OLD)
    assert keys(pool) == ["00-cards-00", "10-01-gpu-00000001", "10-02-gpu-00000002"]
    assert [len(part.shared_counters) for part in pool.slices] == [0, 1, 1]
    assert [part.devices[0]["name"] for part in pool.slices] == [
        "gpu-00000000",
        "gpu-00000001",
        "gpu-00000002",
    ]


def test_a_set_has_at_most_what_a_resourceslice_of_1_34_takes():
    for board in BOARDS:
        (part,) = publish(cuttable(0, board), features=OLD).slices
        assert len(part.shared_counters[0]["counters"]) <= 32


def test_a_partition_says_what_it_is_and_what_it_takes():
    pool = publish(cuttable(0))
    device = next(
        d for part in pool.slices for d in part.devices if d["name"].endswith("3g-40gb-4")
    )
    told = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
    assert told["type"] == "mig"
    assert (told["profile"], told["placementStart"], told["placementSize"]) == ("3g.40gb", 4, 4)
    assert told["parentUUID"] == cuttable(0).uuid
    assert {"uuid", "wholeCard", "nvlinkGroup", "pcieWidth"}.isdisjoint(told)
    assert device["capacity"]["memory"] == {"value": "40448Mi"}
    (uses,) = device["consumesCounters"]
    assert uses["counterSet"] == "gpu-00000000"
    slices = [name for name in uses["counters"] if name.startswith("memory-slice")]
    assert slices == [f"memory-slice-{n}" for n in (4, 5, 6, 7)]


def test_the_whole_card_takes_everything_its_set_has():
    pool = publish(cuttable(0))
    (whole,) = pool.slices[0].devices
    (counters,) = pool.slices[-1].shared_counters
    assert whole["consumesCounters"] == [
        {"counterSet": counters["name"], "counters": counters["counters"]}
    ]


def test_cards_that_nobody_cuts_need_no_counters():
    pool = publish(gpu(0, mig_mode=None), features=NEW)
    assert keys(pool) == ["00-cards-00"]
    assert "consumesCounters" not in pool.slices[0].devices[0]


def test_without_counters_nothing_is_cut():
    pool = publish(cuttable(0), features=frozenset({"taints"}))
    assert keys(pool) == ["00-cards-00"]


def test_a_taint_on_a_partition_rewrites_one_resourceslice():
    taint = {"key": "gpu.aliquot.dev/partition", "value": "strange", "effect": "NoSchedule"}
    before, after = (
        publish(cuttable(0)),
        publish(cuttable(0), taints={"gpu-00000000-mig-2g-20gb-2": [taint]}),
    )
    assert keys(before) == keys(after)
    changed = [a.key for a, b in zip(before.slices, after.slices, strict=True) if a != b]
    assert changed == ["10-02-2g-20gb-00"]
