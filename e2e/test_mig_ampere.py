"""Cards that need a reset for MIG mode: partitions made by hand, and pods that know no DRA."""

from collections.abc import Iterator

import pytest

from driver.sim import control
from e2e.cluster.images import BUSYBOX
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode
from e2e.partitions import (
    by_hand,
    cutting,
    instances,
    parent,
    part,
    remove_pods,
    wait_listed,
    wait_no_instances,
)
from e2e.workloads import LOOK, SLEEP, claim_spec, is_pending, pod, seen, template

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    """Card 0 has MIG mode on and a partition by hand, card 1 is as new."""
    with cutting(cluster, "a100-40gb:2") as node:
        node.process.stop()
        control.reboot(node.sim)
        by_hand(node.sim, 0, "3g.20gb", 4)
        (node.plugin_dir / "node" / "cards.json").unlink()
        node.process.start()
        wait_listed(node)
        poll(lambda: any("3g-20gb-4" in each["name"] for each in node.devices()), "its partition")
        yield node


@pytest.fixture(autouse=True)
def nothing_is_left(driver: DriverNode, kube: Kube, namespace: str) -> Iterator[None]:
    yield
    remove_pods(kube)
    driver.wait_clean()
    wait_no_instances(driver, but=1)


def classic(name: str, namespace: str, **limits: str) -> Object:
    """A pod that was written for NVIDIA's device plugin."""
    body = pod(name, namespace)
    body["spec"]["resourceClaims"] = []
    body["spec"]["containers"] = [
        {
            "name": "main",
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", LOOK + SLEEP],
            "resources": {"limits": limits},
        }
    ]
    return body


def uuid(env: dict[str, str]) -> str:
    return env["ALIQUOT_DEVICE_UUID"]


def test_what_was_there_is_offered_as_it_is_and_stays(
    kube: Kube, namespace: str, driver: DriverNode
):
    names = {each["name"].partition("-mig-")[2] for each in driver.devices()}
    assert "3g-20gb-4" in names
    assert not names & {"1g-5gb-4", "1g-5gb-5", "7g-40gb-0", "1g-10gb-6"}
    spec = claim_spec(part("3g.20gb"))
    kube.apply([template("t", namespace, spec)])
    kube.apply([pod(name, namespace, templates={"c": "t"}) for name in ("a", "b")])
    for name in ("a", "b"):
        kube.wait_pod(name, namespace=namespace)
    # one is the adopted, the other was made beside it
    assert instances(driver.sim) == [(0, 0, 4), (0, 4, 4)]
    assert {name.rpartition("-")[2] for name in parent(kube, namespace)} == {"0", "4"}
    for name in ("a", "b"):
        kube.delete("Pod", name, namespace, grace_s=1)
    driver.wait_clean()
    wait_no_instances(driver, but=1)
    assert instances(driver.sim) == [(0, 4, 4)]


def test_a_restart_does_not_forget_what_was_adopted(
    kube: Kube, namespace: str, driver: DriverNode
):
    kube.apply([template("t", namespace, claim_spec(part("1g.5gb")))])
    kube.apply([pod("a", namespace, templates={"c": "t"})])
    kube.wait_pod("a", namespace=namespace)
    driver.process.kill()
    driver.process.start()
    poll(driver.is_ready, "the plugin to be Ready")
    adopted = [each["name"] for each in driver.devices() if "3g-20gb-4" in each["name"]]
    assert len(adopted) == 1
    assert not any(each.get("taints") for each in driver.devices())


def test_pods_that_know_no_dra_get_a_partition(kube: Kube, namespace: str, driver: DriverNode):
    kube.apply([classic("small", namespace, **{"nvidia.com/mig-1g.5gb": "1"})])
    kube.apply([classic("large", namespace, **{"nvidia.com/mig-3g.20gb": "1"})])
    kube.apply([classic("whole", namespace, **{"nvidia.com/gpu": "1"})])
    looks = {}
    for name in ("small", "large", "whole"):
        kube.wait_pod(name, namespace=namespace)
        looks[name], _ = seen(kube, name, namespace)
    assert looks["small"]["ALIQUOT_DEVICE_TYPE"] == looks["large"]["ALIQUOT_DEVICE_TYPE"] == "mig"
    assert uuid(looks["small"]) != uuid(looks["large"])
    assert looks["whole"]["ALIQUOT_DEVICE_TYPE"] == "gpu"  # card 1, which is not in MIG mode
    kube.apply([classic("another", namespace, **{"nvidia.com/gpu": "1"})])
    kube.wait("Pod", "another", is_pending, namespace=namespace)


def test_a_deployment_that_knows_no_dra_gets_a_partition_a_pod(
    kube: Kube, namespace: str, driver: DriverNode
):
    body = classic("x", namespace, **{"nvidia.com/mig-1g.5gb": "1"})["spec"]
    del body["restartPolicy"]
    labels = {"app": "classic"}
    deployment: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "classic", "namespace": namespace},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": body},
        },
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    kube.request("POST", path, deployment)

    def running() -> int:
        return sum(p["status"].get("phase") == "Running" for p in kube.list("Pod", namespace))

    poll(lambda: running() == 3, "three pods to run", timeout_s=120)
    assert len(instances(driver.sim)) == 4
    kube.request("DELETE", f"{path}/classic")
    poll(lambda: not kube.list("Pod", namespace), "the pods to go", timeout_s=120)


def test_partitions_of_a_card_out_of_mig_mode_are_not_offered(driver: DriverNode):
    cut = {
        each["name"].partition("-mig-")[0] for each in driver.devices() if "-mig-" in each["name"]
    }
    whole = {each["name"] for each in driver.devices() if "-mig-" not in each["name"]}
    assert len(cut) == len(whole) == 1
    assert cut != whole
    assert DRIVER
