"""Partitions on the real cluster: the scheduler chooses, the plugin makes and destroys them."""

from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode
from e2e.partitions import (
    by_hand,
    cutting,
    instances,
    not_by_hand,
    parent,
    part,
    remove_pods,
    wait_listed,
    wait_no_instances,
)
from e2e.workloads import claim_spec, exactly, is_pending, match, pod, seen, template

pytestmark = pytest.mark.timeout(400)

CARD = f"{DRIVER}/parentUUID"


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    with cutting(cluster, "h100-80gb:1") as node:
        yield node


@pytest.fixture(autouse=True)
def nothing_is_left(driver: DriverNode, kube: Kube, namespace: str) -> Iterator[None]:
    yield
    remove_pods(kube)
    driver.wait_clean()
    wait_no_instances(driver)


def start(kube: Kube, namespace: str, name: str, *requests: Object, **more: object) -> None:
    """A pod with one claim of its own."""
    spec = claim_spec(*requests, **more)
    kube.apply([template(name, namespace, spec), pod(name, namespace, templates={"c": name})])


def wait_pending(kube: Kube, namespace: str, name: str) -> None:
    kube.wait("Pod", name, is_pending, namespace=namespace)


def gone(kube: Kube, namespace: str, name: str) -> None:
    """Deleted as users do it: what the kubelet has not unprepared yet is not given out again."""
    kube.delete("Pod", name, namespace, grace_s=1)


def tainted(driver: DriverNode) -> set[str]:
    return {each["name"] for each in driver.devices() if each.get("taints")}


def over(driver: DriverNode, first: int, last: int) -> set[str]:
    """Devices that have a memory slice in common with these; the whole card has."""
    found = set()
    for device in driver.devices():
        told = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
        start, size = told.get("placementStart", 0), told.get("placementSize", 8)
        if start <= last and first < start + size:
            found.add(device["name"])
    return found


def test_seven_pods_share_one_card_and_each_sees_its_own(
    kube: Kube, namespace: str, driver: DriverNode
):
    for n in range(7):
        start(kube, namespace, f"p{n}", part("1g.10gb"))
    looks = []
    for n in range(7):
        kube.wait_pod(f"p{n}", namespace=namespace)
        looks.append(seen(kube, f"p{n}", namespace))
    assert instances(driver.sim) == [(0, n, 1) for n in range(7)]
    uuids = {env["ALIQUOT_GPU_0_UUID"] for env, _ in looks}
    assert len(uuids) == 7
    assert all(uuid.startswith("MIG-") for uuid in uuids)
    for env, nodes in looks:
        assert env["ALIQUOT_GPU_0_TYPE"] == "mig"
        assert int(env["ALIQUOT_GPU_0_MEMORY_BYTES"]) > 9 << 30
        assert {"nvidia0", "nvidiactl", "nvidia-caps"} <= nodes
    start(kube, namespace, "p7", part("1g.10gb"))
    wait_pending(kube, namespace, "p7")
    gone(kube, namespace, "p3")
    kube.wait_pod("p7", namespace=namespace)
    assert instances(driver.sim) == [(0, n, 1) for n in range(7)]


def test_each_pod_has_the_two_capabilities_of_its_partition(
    kube: Kube, namespace: str, driver: DriverNode
):
    name = "caps"
    script = "ls -l /dev/nvidia-caps; echo looked; trap 'exit 0' TERM; sleep 100000 & wait"
    kube.apply(
        [
            template(name, namespace, claim_spec(part("2g.20gb"))),
            pod(name, namespace, script, templates={"c": name}),
        ]
    )
    kube.wait_pod(name, namespace=namespace)
    text = poll(
        lambda: text if "looked" in (text := kube.logs(name, namespace=namespace)) else None,
        "the pod to look around",
    )
    nodes = [line.split() for line in text.splitlines() if "nvidia-cap" in line]
    assert len(nodes) == 2
    assert all(line[0].startswith("cr--r--r--") and line[4] == "235," for line in nodes)


def test_two_large_ones_and_a_small_one_do_not_fit(kube: Kube, namespace: str, driver: DriverNode):
    for name in ("a", "b"):
        start(kube, namespace, name, part("3g.40gb"))
        kube.wait_pod(name, namespace=namespace)
    assert instances(driver.sim) == [(0, 0, 4), (0, 4, 4)]
    start(kube, namespace, "c", part("1g.10gb"))
    wait_pending(kube, namespace, "c")
    gone(kube, namespace, "a")
    kube.wait_pod("c", namespace=namespace)


def test_the_whole_card_waits_for_its_partitions_and_they_for_it(
    kube: Kube, namespace: str, driver: DriverNode
):
    start(kube, namespace, "small", part("1g.10gb"))
    kube.wait_pod("small", namespace=namespace)
    start(kube, namespace, "whole", exactly())
    wait_pending(kube, namespace, "whole")
    gone(kube, namespace, "small")
    kube.wait_pod("whole", namespace=namespace)
    env, _ = seen(kube, "whole", namespace)
    assert env["ALIQUOT_GPU_0_TYPE"] == "gpu"
    assert env["ALIQUOT_GPU_0_UUID"].startswith("GPU-")
    assert instances(driver.sim) == []
    start(kube, namespace, "small2", part("1g.10gb"))
    wait_pending(kube, namespace, "small2")
    gone(kube, namespace, "whole")
    kube.wait_pod("small2", namespace=namespace)


def test_a_claim_that_asks_for_memory_gets_the_smallest_partition_that_has_it(
    kube: Kube, namespace: str, driver: DriverNode
):
    cel = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("15Gi"))'
    start(kube, namespace, "p", exactly("gpu", 1, cel, deviceClassName="mig"))
    kube.wait_pod("p", namespace=namespace)
    (device,) = parent(kube, namespace)
    assert "-mig-1g-20gb-" in device


def test_two_partitions_of_one_card_in_one_claim(kube: Kube, namespace: str, driver: DriverNode):
    requests = part("1g.10gb", "small"), part("3g.40gb", "large")
    start(kube, namespace, "p", *requests, constraints=[match(CARD)])
    kube.wait_pod("p", namespace=namespace)
    env, _ = seen(kube, "p", namespace)
    assert env["ALIQUOT_SMALL_0_UUID"] != env["ALIQUOT_LARGE_0_UUID"]
    assert sorted(size for _, _, size in instances(driver.sim)) == [1, 4]


def test_the_claims_status_says_which_partition_it_is(
    kube: Kube, namespace: str, driver: DriverNode
):
    start(kube, namespace, "p", part("2g.20gb"))
    kube.wait_pod("p", namespace=namespace)

    def told() -> Object | None:
        (found,) = kube.list("ResourceClaim", namespace)
        devices = found["status"].get("devices")
        return devices[0] if devices else None

    device = poll(told, "status.devices")
    assert device["data"]["profile"] == "2g.20gb"
    assert device["data"]["memoryLimit"] == "hardware"
    assert "memory slices" in device["conditions"][0]["message"]


def test_a_deployment_that_is_scaled_up_and_down_leaves_no_instance(
    kube: Kube, namespace: str, driver: DriverNode
):
    kube.apply([template("t", namespace, claim_spec(part("1g.10gb")))])
    body = pod("x", namespace, templates={"c": "t"})["spec"]
    del body["restartPolicy"]
    labels = {"app": "scaled"}
    deployment: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "scaled", "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": body},
        },
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    kube.request("POST", path, deployment)

    def scale(count: int) -> None:
        body = {
            "spec": {"replicas": count},
            "metadata": {"name": "scaled", "namespace": namespace},
        }
        kube.request(
            "PUT",
            f"{path}/scaled/scale",
            {"apiVersion": "autoscaling/v1", "kind": "Scale", **body},
        )

    def running() -> int:
        return sum(p["status"].get("phase") == "Running" for p in kube.list("Pod", namespace))

    for _ in range(5):
        scale(7)
        poll(lambda: running() == 7, "seven pods to run", timeout_s=120)
        assert len(instances(driver.sim)) == 7
        scale(0)
        poll(lambda: not kube.list("Pod", namespace), "all pods to be gone", timeout_s=120)
        wait_no_instances(driver)


def test_what_an_administrator_makes_is_left_alone_and_in_nobodys_way(
    kube: Kube, namespace: str, driver: DriverNode
):
    """Made after the card was first seen: a stranger. Its place is tainted, the rest is used."""
    start(kube, namespace, "first", part("1g.10gb", start=0))
    kube.wait_pod("first", namespace=namespace)
    wait_listed(driver)
    by_hand(driver.sim, 0, "3g.40gb", 4)
    try:
        poll(lambda: tainted(driver) == over(driver, 4, 7), "the stranger's place to be tainted")
        start(kube, namespace, "large", part("3g.40gb"))
        wait_pending(kube, namespace, "large")
        start(kube, namespace, "small", part("1g.10gb"))
        kube.wait_pod("small", namespace=namespace)
        gone(kube, namespace, "large")
        assert driver.events("StrangePartition")
    finally:
        not_by_hand(driver.sim, 0, 4)
    poll(lambda: not any(d.get("taints") for d in driver.devices()), "the taints to go")
