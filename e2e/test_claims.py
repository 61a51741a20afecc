"""Pods claim whole cards: what they ask for is what they see, and nothing is left of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, start_driver
from e2e.workloads import (
    LOOK,
    SLEEP,
    cards,
    claim,
    claim_spec,
    container,
    exactly,
    is_pending,
    match,
    pod,
    seen,
    template,
    uuids,
)

NVLINK = f"{DRIVER}/nvlinkGroup"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    node = start_driver(cluster)
    node.wait_published(8)
    yield node
    node.process.stop()


@pytest.fixture(autouse=True)
def nothing_is_left(driver: DriverNode, kube: Kube, namespace: str) -> Iterator[None]:
    """After each test its pods are deleted; then no record, no CDI file, no open file may stay."""
    files = open_files(driver)
    yield
    for item in kube.list("Pod", namespace):
        kube.delete("Pod", item["metadata"]["name"], namespace, grace_s=1)
    driver.wait_clean()
    poll(lambda: open_files(driver) <= files + 2, "open files of the plugin to go back")


def open_files(driver: DriverNode) -> int:
    return len(list(Path(f"/proc/{driver.process.pid}/fd").iterdir()))


def attribute(driver: DriverNode, device: str, name: str) -> object:
    found = next(each for each in driver.devices() if each["name"] == device)
    return next(iter(found["attributes"][name].values()))


def allocated(kube: Kube, namespace: str) -> list[Object]:
    """All allocation results in the namespace."""
    return [
        result
        for item in kube.list("ResourceClaim", namespace)
        for result in item.get("status", {}).get("allocation", {})["devices"]["results"]
    ]


def run(kube: Kube, namespace: str, spec: Object, name: str = "user") -> Object:
    """Start a pod with one claim of a template and wait until it runs."""
    kube.apply([template(name, namespace, spec), pod(name, namespace, templates={"c": name})])
    return kube.wait_pod(name, namespace=namespace)


def test_one_gpu_by_template(kube: Kube, namespace: str, driver: DriverNode):
    run(kube, namespace, claim_spec())

    env, nodes = seen(kube, "user", namespace)
    (result,) = allocated(kube, namespace)
    assert uuids(env) == {attribute(driver, result["device"], "uuid")}
    assert len(cards(nodes)) == 1
    assert {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} <= nodes
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert env["ALIQUOT_DEVICE_TYPE"] == env["ALIQUOT_GPU_0_TYPE"] == "gpu"
    assert env["ALIQUOT_DEVICE_MEMORY_BYTES"] == str(81559 << 20)


def test_the_claims_status_says_what_is_ready(kube: Kube, namespace: str, driver: DriverNode):
    run(kube, namespace, claim_spec())

    (found,) = kube.list("ResourceClaim", namespace)
    done = kube.wait(
        "ResourceClaim",
        found["metadata"]["name"],
        lambda c: c["status"].get("devices"),
        namespace=namespace,
    )
    (device,) = done["status"]["devices"]
    (condition,) = device["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert device["data"]["uuid"] == attribute(driver, device["device"], "uuid")
    assert device["data"]["memoryLimit"] == "hardware"


def test_the_device_node_in_the_container_can_be_opened(kube: Kube, namespace: str):
    kube.apply(template("open", namespace, claim_spec()))
    script = "set -e; for d in /dev/nvidia*; do test -c $d; : < $d; done; echo opened"
    kube.apply(pod("open", namespace, script, templates={"c": "open"}))

    kube.wait_pod("open", "Succeeded", namespace)

    assert kube.logs("open", namespace=namespace) == "opened\n"


def test_two_gpus_of_one_nvlink_group(kube: Kube, namespace: str, driver: DriverNode):
    run(kube, namespace, claim_spec(exactly(count=2), constraints=[match(NVLINK)]))

    env, nodes = seen(kube, "user", namespace)
    results = allocated(kube, namespace)
    assert len(uuids(env)) == len(cards(nodes)) == len(results) == 2
    assert len({attribute(driver, each["device"], "nvlinkGroup") for each in results}) == 1
    assert {"ALIQUOT_GPU_0_UUID", "ALIQUOT_GPU_1_UUID"} <= env.keys()


def test_two_gpus_below_one_pcie_root(kube: Kube, namespace: str, driver: DriverNode):
    spec = claim_spec(exactly("a"), exactly("b"), constraints=[match(PCIE_ROOT, "a", "b")])
    run(kube, namespace, spec)

    results = allocated(kube, namespace)
    assert len({attribute(driver, each["device"], PCIE_ROOT) for each in results}) == 1
    env, _ = seen(kube, "user", namespace)
    assert env["ALIQUOT_A_0_UUID"] != env["ALIQUOT_B_0_UUID"]


def test_a_gpu_by_product_and_memory(kube: Kube, namespace: str):
    product = f'device.attributes["{DRIVER}"].productName.contains("H100")'
    memory = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
    run(kube, namespace, claim_spec(exactly("gpu", 1, product, memory)))

    assert len(allocated(kube, namespace)) == 1


def test_a_product_that_is_not_here_stays_pending(kube: Kube, namespace: str):
    product = f'device.attributes["{DRIVER}"].productName.contains("A100")'
    kube.apply(template("no", namespace, claim_spec(exactly("gpu", 1, product))))
    kube.apply(pod("no", namespace, templates={"c": "no"}))

    kube.wait("Pod", "no", is_pending, namespace=namespace)


def test_two_pods_share_one_claim(kube: Kube, namespace: str, driver: DriverNode):
    kube.apply(claim("shared", namespace, claim_spec()))
    for name in ("first", "second"):
        kube.apply(pod(name, namespace, claims={"c": "shared"}))
    for name in ("first", "second"):
        kube.wait_pod(name, namespace=namespace)

    assert seen(kube, "first", namespace) == seen(kube, "second", namespace)
    assert len(driver.records()) == 1

    kube.delete("Pod", "first", namespace, grace_s=0)
    kube.wait_gone("Pod", "first", namespace)
    assert kube.exec("second", ["ls", "/dev/nvidiactl"], namespace=namespace)
    assert len(driver.records()) == len(driver.cdi_files()) == 1


def test_first_available_takes_the_alternative(kube: Kube, namespace: str):
    nowhere = exactly("x", 1, f'device.attributes["{DRIVER}"].productName == "none"')["exactly"]
    request = {
        "name": "gpu",
        "firstAvailable": [
            {"name": "best", **nowhere},
            {"name": "good", "deviceClassName": "gpu"},
        ],
    }
    run(kube, namespace, claim_spec(request))

    (result,) = allocated(kube, namespace)
    assert result["request"] == "gpu/good"
    env, _ = seen(kube, "user", namespace)
    assert "ALIQUOT_GPU_0_UUID" in env


def test_a_claim_that_fits_nowhere_starts_when_room_appears(
    kube: Kube, namespace: str, driver: DriverNode
):
    run(kube, namespace, claim_spec(exactly(count=8)), "greedy")
    _, nodes = seen(kube, "greedy", namespace)
    assert len(cards(nodes)) == 8

    kube.apply(template("late", namespace, claim_spec()))
    kube.apply(pod("late", namespace, templates={"c": "late"}))
    kube.wait("Pod", "late", is_pending, namespace=namespace)

    kube.delete("Pod", "greedy", namespace, grace_s=0)
    kube.wait_pod("late", namespace=namespace)


def test_a_job_completes(kube: Kube, namespace: str, driver: DriverNode):
    kube.apply(template("job", namespace, claim_spec()))
    body = pod("x", namespace, LOOK, templates={"c": "job"})["spec"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": namespace},
        "spec": {"completions": 3, "parallelism": 2, "template": {"spec": body}},
    }
    kube.apply(job)

    kube.wait("Job", "job", lambda j: j["status"].get("succeeded") == 3, namespace=namespace)
    driver.wait_clean()  # finished pods give their cards back, deleted or not


def test_an_init_container_sees_the_gpu_too(kube: Kube, namespace: str):
    kube.apply(template("init", namespace, claim_spec()))
    first = container(LOOK, [{"name": "c"}], name="first")
    kube.apply(pod("init", namespace, templates={"c": "init"}, initContainers=[first]))
    kube.wait_pod("init", namespace=namespace)

    assert seen(kube, "init", namespace, "first") == seen(kube, "init", namespace, "main")


def test_a_pod_with_two_claims_gives_each_container_its_own(
    kube: Kube, namespace: str, driver: DriverNode
):
    kube.apply(
        [template("one", namespace, claim_spec()), template("two", namespace, claim_spec())]
    )
    body = pod("pair", namespace, templates={"one": "one", "two": "two"})
    script = LOOK + SLEEP
    body["spec"]["containers"] = [
        container(script, [{"name": "one"}], "left"),
        container(script, [{"name": "two"}], "right"),
        container(script, [{"name": "one"}, {"name": "two"}], "both"),
        container(script, [], "none"),
    ]
    kube.apply(body)
    kube.wait_pod("pair", namespace=namespace)

    looks = {n: seen(kube, "pair", namespace, n) for n in ("left", "right", "both", "none")}
    left, right, both = (cards(looks[n][1]) for n in ("left", "right", "both"))
    assert len(left) == len(right) == 1
    assert left != right
    assert both == left | right
    assert looks["none"] == ({}, set())
    assert len(driver.records()) == 2


def test_a_container_uses_one_request_of_a_claim(kube: Kube, namespace: str):
    kube.apply(template("parts", namespace, claim_spec(exactly("a"), exactly("b"))))
    body = pod("parts", namespace, templates={"c": "parts"})
    script = LOOK + SLEEP
    body["spec"]["containers"] = [
        container(script, [{"name": "c", "request": "a"}], "a"),
        container(script, [{"name": "c", "request": "b"}], "b"),
    ]
    kube.apply(body)
    kube.wait_pod("parts", namespace=namespace)

    a, b = (seen(kube, "parts", namespace, name) for name in ("a", "b"))
    assert uuids(a[0]).isdisjoint(uuids(b[0]))
    assert len(cards(a[1])) == len(cards(b[1])) == 1


def test_a_forced_deletion_leaves_nothing(kube: Kube, namespace: str, driver: DriverNode):
    run(kube, namespace, claim_spec())
    kube.delete("Pod", "user", namespace, grace_s=0)

    driver.wait_clean()


def test_exclusive_process_mode_is_set_for_a_claim_and_taken_back(
    kube: Kube, namespace: str, driver: DriverNode
):
    parameters = {
        "apiVersion": f"{DRIVER}/v1alpha1",
        "kind": "GpuConfig",
        "computeMode": "ExclusiveProcess",
    }
    config = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    run(kube, namespace, claim_spec(config=config))
    assert len(driver.records()) == 1

    kube.delete("Pod", "user", namespace, grace_s=0)
    driver.wait_clean()
