"""What the plugin refuses of shares, whatever was allocated: the text, and nothing left behind."""

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from driver.sim import control
from e2e.cluster.kube import Kube, Object
from e2e.driver_node import DRIVER
from e2e.sharing import GIB, SharingNode, node_of, share, start, told
from e2e.workloads import allocated_by_hand, opaque, released_by_hand

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_is_left")]

API = f"{DRIVER}/v1alpha1"
STRANGER = 4711
SOUND = {"memory": "14Gi", "computePercent": "25", "shares": "1"}

driver = node_of("h100-80gb:2")


def mps_config(**fields: Any) -> Object:
    return opaque(DRIVER, {"apiVersion": API, "kind": "MpsConfig", **fields})


def devices(driver: SharingNode, kind: str = "mps") -> list[str]:
    names = [each["name"] for each in driver.devices(shared=True)]
    return [name for name in names if name.endswith(f"-{kind}")]


def result(driver: SharingNode, device: str, consumed: Mapping[str, str] | None = None) -> Object:
    """An allocation as the scheduler writes it; ``consumed`` {}: nothing was counted."""
    return {
        "driver": DRIVER,
        "pool": driver.cluster.node_name,
        "device": device,
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": dict(SOUND if consumed is None else consumed),
    }


def text_of(
    driver: SharingNode, kube: Kube, namespace: str, results: list[Object], *config: Object
) -> str:
    """What the socket answers for such a claim, which must leave nothing."""
    ref = allocated_by_hand(kube, namespace, f"claim-{uuid.uuid4().hex[:6]}", results, *config)
    text = driver.prepare(ref).error
    assert driver.left() == []
    released_by_hand(kube, ref)
    return text


def test_shares_of_two_cards_in_one_claim(kube: Kube, namespace: str, driver: SharingNode):
    one, two = devices(driver)
    both = [result(driver, one), result(driver, two)]
    text = text_of(driver, kube, namespace, both)
    assert "has shares of two cards" in text
    assert one in text
    assert two in text


@pytest.mark.parametrize(
    ("consumed", "said"),
    [
        ({}, "no consumedCapacity"),
        ({**SOUND, "memory": "0"}, "consumedCapacity.memory is 0, wanted: at least 1Mi"),
        ({**SOUND, "memory": "80Gi"}, "wanted: at most"),
        ({**SOUND, "computePercent": "101"}, "computePercent is 101, wanted: 0 to 100"),
        ({**SOUND, "shares": "0"}, "shares is 0"),
        ({"memory": "14Gi", "shares": "1"}, "computePercent is nothing"),
    ],
)
def test_a_capacity_that_cannot_be(
    kube: Kube, namespace: str, driver: SharingNode, consumed: dict[str, str], said: str
):
    found = result(driver, devices(driver)[0], consumed)
    if not consumed:
        del found["consumedCapacity"]
    assert said in text_of(driver, kube, namespace, [found])


def test_one_request_with_one_card_twice(kube: Kube, namespace: str, driver: SharingNode):
    one = devices(driver)[0]
    both = [result(driver, one), result(driver, one)]
    assert "more than once" in text_of(driver, kube, namespace, both)


def test_more_than_is_left(kube: Kube, namespace: str, driver: SharingNode):
    """Which no scheduler does that counts: the holder is named."""
    one = devices(driver)[0]
    wish = {"memory": "60Gi", "computePercent": "10", "shares": "1"}
    holder = allocated_by_hand(kube, namespace, "holder", [result(driver, one, wish)])
    assert driver.prepare(holder).error == ""
    late = allocated_by_hand(kube, namespace, "late", [result(driver, one, wish)])
    text = driver.prepare(late).error
    assert f"{namespace}/holder" in text
    assert "are left of its memory" in text
    assert driver.records() == [holder.uid]
    assert driver.unprepare(holder) == ""
    assert driver.prepare(late).error == ""
    assert driver.unprepare(late) == ""
    for ref in (holder, late):
        released_by_hand(kube, ref)


def test_a_card_that_somebody_else_computes_on(kube: Kube, namespace: str, driver: SharingNode):
    one = devices(driver)[0]
    for index in range(2):
        control.set_process(driver.sim, index, STRANGER, GIB)
    try:
        text = text_of(driver, kube, namespace, [result(driver, one)])
    finally:
        for index in range(2):
            control.clear_processes(driver.sim, index)
    assert "in use by processes that belong to no claim" in text
    assert str(STRANGER) in text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"requireEnforcement": "mpsProcess"}, "memory is limited by mpsCooperative"),
        ({"memoryLimit": "1Gi\nLD_PRELOAD=/x"}, ".memoryLimit"),
        ({"pipeDirectory": "/x"}, ".pipeDirectory"),
        ({"computePercentLimit": 0}, ".computePercentLimit"),
        ({"computePercentLimit": "50; quit"}, ".computePercentLimit"),
    ],
)
def test_a_config_that_asks_for_what_there_is_not(
    kube: Kube, namespace: str, driver: SharingNode, fields: dict[str, Any], said: str
):
    one = devices(driver)[0]
    assert said in text_of(driver, kube, namespace, [result(driver, one)], mps_config(**fields))


def test_a_limit_on_a_turn(kube: Kube, namespace: str, driver: SharingNode):
    found = result(driver, devices(driver, "timeslice")[0], {"shares": "1"})
    text = text_of(driver, kube, namespace, [found], mps_config(memoryLimit="1Gi"))
    assert "only shares of a card (type mps) have it" in text


@pytest.mark.parametrize("fields", [{}, {"memoryLimit": None, "requireEnforcement": None}])
def test_an_empty_config_is_as_good_as_none(
    kube: Kube, namespace: str, driver: SharingNode, fields: dict[str, Any]
):
    start(kube, namespace, "p", share("14Gi", "25"), config=[mps_config(**fields)])
    kube.wait_pod("p", namespace=namespace, timeout_s=120)
    assert told(kube, namespace, "p")["ALIQUOT_DEVICE_MEMORY_BYTES"] == str(14 * GIB)


def test_a_claim_cannot_loosen_the_limits_of_its_class(
    kube: Kube, namespace: str, driver: SharingNode
):
    cel = f'device.attributes["{DRIVER}"].type == "mps"'
    kube.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "small-share"},
            "spec": {
                "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}" && {cel}'}}],
                "config": [mps_config(memoryLimit="10Gi", computePercentLimit=20)],
            },
        }
    )
    wish = share("30Gi", "50", deviceClassName="small-share")
    loose = mps_config(memoryLimit="20Gi", computePercentLimit=90)
    start(kube, namespace, "p", wish, ask=True, config=[loose])
    kube.wait_pod("p", namespace=namespace, timeout_s=120)
    env = told(kube, namespace, "p")
    assert env["ALIQUOT_DEVICE_MEMORY_BYTES"] == str(10 * GIB)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"
