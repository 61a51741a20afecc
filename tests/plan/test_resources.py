import kubernetes_validate
import pytest

from api.policy import NodePolicy
from driver.model.gpu import Fabric
from driver.plan.allocatable import allocatable
from driver.plan.resources import driver_resources
from tests.plan.builders import DRIVER, POOL, gpu, inventory, switched

LOST = {"key": f"{DRIVER}/lost", "value": "true", "effect": "NoSchedule"}
INFORMS = LOST | {"effect": "None"}
TAINTS = frozenset({"taints"})


def publish(cards, taints=None, features=TAINTS, held=frozenset()):
    node = inventory(*cards)
    devices = allocatable(node, NodePolicy(), features=features)
    by_device = {each.name: (taints or {}).get(each.gpu.uuid, ()) for each in devices}
    return driver_resources(devices, node, by_device, pool=POOL, features=features, held=held)


def names(pool):
    return [[device["name"] for device in each.devices] for each in pool.slices]


def taints_of(pool):
    devices = [device for each in pool.slices for device in each.devices]
    return {device["name"]: device["taints"] for device in devices if "taints" in device}


@pytest.mark.parametrize("version", ["1.34.0", "1.35.0", "1.36.0", "1.37.0"])
def test_what_is_published_passes_the_strict_schema(version):
    cards = [switched(n, fabric=Fabric("cluster", 1)) for n in range(8)]
    pool = publish(cards, {cards[0].uuid: [LOST]})
    for each in pool.slices:
        obj = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": each.key},
            "spec": {
                "driver": DRIVER,
                "nodeName": POOL,
                "pool": {"name": pool.name, "generation": 1, "resourceSliceCount": 1},
                "devices": list(each.devices),
            },
        }
        kubernetes_validate.validate(obj, version, strict=True)


def test_a_node_without_devices_has_an_empty_pool():
    assert (publish([]).name, publish([]).slices) == (POOL, ())


@pytest.mark.parametrize(
    ("features", "sizes"),
    [
        pytest.param(TAINTS, [64, 64, 2], id="room-for-taints"),
        pytest.param(frozenset(), [128, 2], id="no-taints"),
    ],
)
def test_devices_are_cut_to_what_a_resourceslice_holds(features, sizes):
    pool = publish([gpu(n) for n in range(130)], features=features)
    assert [len(each.devices) for each in pool.slices] == sizes
    keys = [each.key for each in pool.slices]
    assert keys == sorted(keys)
    assert keys[0] == "00-cards-00"


def test_a_taint_changes_one_device_and_no_layout():
    cards = [gpu(n) for n in range(100)]
    before, after = publish(cards), publish(cards, {cards[7].uuid: [LOST]})
    assert names(before) == names(after)
    assert taints_of(after) == {"gpu-00000007": [LOST]}
    assert [a == b for a, b in zip(before.slices, after.slices, strict=True)] == [True, False]


def test_without_taints_a_faulty_card_is_withdrawn_unless_it_is_held():
    cards = [gpu(0), gpu(1)]
    taints = {cards[0].uuid: [LOST], cards[1].uuid: [LOST]}
    pool = publish(cards, taints, frozenset(), frozenset({"gpu-00000001"}))
    assert names(pool) == [["gpu-00000001"]]
    assert taints_of(pool) == {}


def test_a_withdrawn_device_moves_no_other_to_another_resourceslice():
    cards = [gpu(n) for n in range(130)]
    pool = publish(cards, {cards[129].uuid: [LOST]}, frozenset())  # the first in the order
    assert [len(each.devices) for each in pool.slices] == [127, 2]


def test_a_taint_that_only_informs_withdraws_nothing():
    card = gpu(0)
    assert names(publish([card], {card.uuid: [INFORMS]}, frozenset())) == [["gpu-00000000"]]


def test_a_published_taint_is_a_copy():
    card, taint = gpu(0), dict(LOST)
    pool = publish([card], {card.uuid: [taint]})
    taint["value"] = "changed"
    assert taints_of(pool) == {"gpu-00000000": [LOST]}
