"""Shares on the real cluster: the scheduler divides a card, MPS daemons run, containers see it."""

from collections.abc import Iterator

import pytest

from e2e.cluster.errors import KubeError
from e2e.cluster.kube import Kube
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER
from e2e.partitions import instances, part
from e2e.sharing import (
    GIB,
    SharingNode,
    asking,
    claim_of,
    memory,
    node_of,
    ready_condition,
    results,
    share,
    start,
    status_of,
    told,
    turn,
)
from e2e.workloads import claim_spec, exactly, is_pending, opaque, pod, template

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_is_left")]

EXCLUSIVE = 3  # nvmlComputeMode_t
MIB = 1 << 20
MOST = 48

driver = node_of("h100-80gb:1")


@pytest.fixture
def namespaces(kube: Kube, namespace: str) -> Iterator[list[str]]:
    """Four of them; the first is the test's own."""
    made = [namespace]
    for _ in range(3):
        metadata = {"generateName": "test-"}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        name = str(kube.create(body)["metadata"]["name"])
        kube.wait("ServiceAccount", "default", lambda _: True, namespace=name)
        made.append(name)
    yield made
    for name in made[1:]:
        kube.delete("Namespace", name)


def runs(kube: Kube, namespace: str, name: str) -> None:
    kube.wait_pod(name, namespace=namespace, timeout_s=120)


def waits(kube: Kube, namespace: str, name: str) -> None:
    kube.wait("Pod", name, is_pending, namespace=namespace)


def gone(kube: Kube, namespace: str, name: str) -> None:
    """Deleted as users do it: what the kubelet has not unprepared yet is not given out again."""
    kube.delete("Pod", name, namespace, grace_s=1)


def refused(kube: Kube, namespace: str, name: str, text: str) -> None:
    """The kubelet was told no, with this text."""
    poll(
        lambda: any(text in event["message"] for event in kube.events(name, namespace)),
        f"an event on pod {name} with {text!r}",
        timeout_s=120,
        detail=lambda: str([event["message"] for event in kube.events(name, namespace)]),
    )


def test_three_namespaces_on_one_card_and_the_fourth_waits(
    kube: Kube, namespaces: list[str], driver: SharingNode
):
    sizes = {"a": ("40Gi", "25"), "b": ("30Gi", "50"), "c": ("9Gi", None)}
    for where, (name, wish) in zip(namespaces, sizes.items(), strict=False):
        start(kube, where, name, share(*wish), ask=True)
    for where, (name, (size, percent)) in zip(namespaces, sizes.items(), strict=False):
        runs(kube, where, name)
        env = told(kube, where, name)
        assert env["ALIQUOT_GPU_0_TYPE"] == "mps"
        assert env["ALIQUOT_GPU_0_MEMORY_BYTES"] == str(memory(size))
        assert env["ALIQUOT_GPU_0_COMPUTE_PERCENT"] == (percent or "100")
        limit = f"0={memory(size) // MIB}M"
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == limit
        assert env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == percent
    assert driver.modes() == [EXCLUSIVE]
    start(kube, namespaces[3], "d", share("1Gi"))
    waits(kube, namespaces[3], "d")
    gone(kube, namespaces[1], "b")
    runs(kube, namespaces[3], "d")


def test_a_container_reaches_its_cards_daemon(kube: Kube, namespace: str, driver: SharingNode):
    start(kube, namespace, "p", share("14Gi", "25"), ask=True)
    runs(kube, namespace, "p")
    env = told(kube, namespace, "p")
    daemon = driver.daemon()
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(daemon.pipe_directory)
    assert len(env["CUDA_MPS_PIPE_DIRECTORY"]) <= 87
    assert env["PIPE_MODE"] == "755"
    assert env["SHM_MODE"] == "1777"
    # The daemon's own: the most that any share of the card can have.
    (device,) = [each for each in driver.devices(shared=True) if each["name"].endswith("-mps")]
    published = memory(device["capacity"]["memory"]["value"])
    assert daemon.spec.memory_limit == published
    assert env["ASKED_PERCENT"] == "100.0"
    assert env["ASKED_MEMORY"] == f"{published // GIB}G"
    fraction = float(env["ALIQUOT_DEVICE_MEMORY_FRACTION"])
    assert 0 < fraction * published <= 14 * GIB
    status = status_of(kube, namespace, "p")
    assert status["data"]["memoryLimit"] == "mpsCooperative"
    assert "mpsCooperative" in ready_condition(status)["message"]


def test_the_whole_card_and_partitions_wait_for_shares_and_win_after_them(
    kube: Kube, namespace: str, driver: SharingNode
):
    start(kube, namespace, "share", share("10Gi"))
    runs(kube, namespace, "share")
    start(kube, namespace, "whole", exactly())
    waits(kube, namespace, "whole")
    gone(kube, namespace, "share")
    runs(kube, namespace, "whole")
    assert told(kube, namespace, "whole")["ALIQUOT_GPU_0_TYPE"] == "gpu"
    assert driver.daemons() == ()
    assert driver.modes() == []
    start(kube, namespace, "share2", share("10Gi"))
    waits(kube, namespace, "share2")
    gone(kube, namespace, "whole")
    runs(kube, namespace, "share2")
    start(kube, namespace, "cut", part("1g.10gb"))
    waits(kube, namespace, "cut")
    gone(kube, namespace, "share2")
    runs(kube, namespace, "cut")
    assert len(instances(driver.sim)) == 1
    start(kube, namespace, "turn", turn())
    waits(kube, namespace, "turn")


def test_forty_eight_shares_and_no_more(kube: Kube, namespace: str, driver: SharingNode):
    for number in range(MOST):
        start(kube, namespace, f"p{number}", share("1600Mi", "2"))
    for number in range(MOST):
        kube.wait_pod(f"p{number}", namespace=namespace, timeout_s=300)
    assert len(driver.records()) == MOST
    assert len(driver.daemons()) == 1
    start(kube, namespace, "late", share("1Mi"))
    waits(kube, namespace, "late")
    gone(kube, namespace, "p7")
    kube.wait_pod("late", namespace=namespace, timeout_s=120)


def test_two_shares_in_one_claim_one_for_each_container(
    kube: Kube, namespace: str, driver: SharingNode
):
    requests = share("20Gi", "20", "small"), share("40Gi", "60", "large")
    made = pod("p", namespace, templates={"c": "p"})
    made["spec"]["containers"] = [asking("one", "small"), asking("two", "large")]
    kube.apply([template("p", namespace, claim_spec(*requests)), made])
    runs(kube, namespace, "p")
    found = {}
    for name, request, size, percent in (
        ("one", "SMALL", 20 * GIB, "20"),
        ("two", "LARGE", 40 * GIB, "60"),
    ):
        env = found[name] = told(kube, namespace, "p", name)
        assert env[f"ALIQUOT_{request}_0_MEMORY_BYTES"] == str(size)
        assert env["ALIQUOT_DEVICE_MEMORY_BYTES"] == str(size)
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={size // MIB}M"
        assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == percent
        assert env["ASKED_PERCENT"] == "100.0"
    assert "ALIQUOT_LARGE_0_UUID" not in found["one"]
    assert "ALIQUOT_SMALL_0_UUID" not in found["two"]
    assert len(driver.records()) == 1


def test_who_asks_for_everything_gets_a_whole_card_without_mps(
    kube: Kube, namespace: str, driver: SharingNode
):
    start(kube, namespace, "p", share(), ask=False)
    runs(kube, namespace, "p")
    env = told(kube, namespace, "p")
    assert env["ALIQUOT_DEVICE_MEMORY_FRACTION"] == "1"
    assert "mps" not in str(driver.cdi_files()[0].read_text())
    assert driver.daemons() == ()
    assert driver.modes() == []
    status = status_of(kube, namespace, "p")
    assert status["data"]["memoryLimit"] == "hardware"


@pytest.mark.parametrize(
    ("asked", "consumed"),
    [
        (("1", "10"), ("1Mi", "10")),
        (("1Mi", "10"), ("1Mi", "10")),
        (("10.5Gi", "0"), ("10752Mi", "0")),
        (("10.5Gi", "33"), ("10752Mi", "33")),
        (("1073741825", "100"), ("1025Mi", "100")),
    ],
)
def test_what_is_enforced_is_never_above_what_was_consumed(
    kube: Kube,
    namespace: str,
    driver: SharingNode,
    asked: tuple[str, str],
    consumed: tuple[str, str],
):
    start(kube, namespace, "p", share(*asked), ask=True)
    runs(kube, namespace, "p")
    (result,) = results(claim_of(kube, namespace, "p"))
    took = result["consumedCapacity"]
    assert (memory(took["memory"]), took["computePercent"]) == (memory(consumed[0]), consumed[1])
    env = told(kube, namespace, "p")
    assert int(env["ALIQUOT_GPU_0_MEMORY_BYTES"]) <= memory(took["memory"])
    enforced = env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].removeprefix("0=").removesuffix("M")
    assert 0 < int(enforced) * MIB <= memory(took["memory"])
    percent = env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    assert percent == (None if took["computePercent"] in ("0", "100") else took["computePercent"])
    data = status_of(kube, namespace, "p")["data"]
    assert memory(data["memory"]) == int(enforced) * MIB


@pytest.mark.parametrize("wish", [("1Gi", "101"), ("80Gi", "10")])
def test_more_than_the_card_has_waits(
    kube: Kube, namespace: str, driver: SharingNode, wish: tuple[str, str]
):
    start(kube, namespace, "p", share(*wish))
    waits(kube, namespace, "p")


def test_a_fraction_of_a_percent(kube: Kube, namespace: str, driver: SharingNode):
    """Whatever the scheduler makes of it, no more than that is enforced."""
    try:
        start(kube, namespace, "p", share("1Gi", "12500m"))
    except KubeError as error:
        assert error.status == 422  # noqa: PT017 - refused at once is as good
        return
    runs(kube, namespace, "p")
    (result,) = results(claim_of(kube, namespace, "p"))
    percent = told(kube, namespace, "p")["ALIQUOT_GPU_0_COMPUTE_PERCENT"]
    assert result["consumedCapacity"]["computePercent"] == percent == "13"


def test_a_turn_says_that_nothing_is_limited(kube: Kube, namespace: str, driver: SharingNode):
    (device,) = [
        each for each in driver.devices(shared=True) if each["name"].endswith("-timeslice")
    ]
    attributes = {key: next(iter(v.values())) for key, v in device["attributes"].items()}
    assert attributes["type"] == "timeslice"
    assert attributes["memoryLimit"] == attributes["computeLimit"] == "none"
    start(kube, namespace, "p", turn())
    start(kube, namespace, "q", turn())
    for name in ("p", "q"):
        runs(kube, namespace, name)
        env = told(kube, namespace, name)
        assert env["ALIQUOT_GPU_0_TYPE"] == "timeslice"
        assert not [key for key in env if key.startswith("CUDA_MPS")]
        condition = ready_condition(status_of(kube, namespace, name))
        assert "neither memory nor compute is limited" in condition["message"]
    assert driver.daemons() == ()
    start(kube, namespace, "s", share("1Gi"))
    waits(kube, namespace, "s")


def test_a_card_has_one_interval(kube: Kube, namespace: str, driver: SharingNode):
    def interval(value: str) -> list[object]:
        parameters = {
            "apiVersion": f"{DRIVER}/v1alpha1",
            "kind": "TimeSliceConfig",
            "interval": value,
        }
        return [opaque(DRIVER, parameters)]

    start(kube, namespace, "first", turn(), config=interval("Long"))
    runs(kube, namespace, "first")
    assert driver.intervals() == [3]
    start(kube, namespace, "same", turn(), config=interval("Long"))
    runs(kube, namespace, "same")
    start(kube, namespace, "other", turn(), config=interval("Short"))
    holder = claim_of(kube, namespace, "first")["metadata"]["name"]
    refused(kube, namespace, "other", holder)
    refused(kube, namespace, "other", "interval SHORT")
    gone(kube, namespace, "other")
    start(kube, namespace, "any", turn())
    runs(kube, namespace, "any")
    assert driver.intervals() == [3]
