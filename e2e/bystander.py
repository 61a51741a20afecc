"""A plugin with a pod that must notice nothing of what a test does beside it.

Its record, its CDI file, the ResourceSlices and the plugin's process are the same after each test
of a module that imports these fixtures, and nothing else is left.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver.sim.store import Store
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, other_driver, start_driver
from e2e.workloads import allocated_by_hand, claim_spec, pod, seen, template, uuids
from kubeletplugin.contract import ClaimRef

API = f"{DRIVER}/v1alpha1"


@dataclass
class Bystander:
    """A running pod, and everything that must not change."""

    driver: DriverNode
    namespace: str
    pid: int
    slices_too: bool = True

    def state(self) -> object:
        kube = self.driver.kube
        found = kube.get("Pod", "bystander", self.namespace)
        files = {
            path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in [*self.driver.cdi_files(), *self.driver.plugin_dir.glob("claims/*.json")]
        }
        return {
            "pod": (found["metadata"]["uid"], found["status"]["phase"]),
            "restarts": [c["restartCount"] for c in found["status"]["containerStatuses"]],
            "records": self.driver.records(),
            "files": files,
            "slices": [
                s["metadata"]["resourceVersion"] for s in self.driver.slices() if self.slices_too
            ],
            "modes": modes(self.driver),
            "pid": self.driver.process.pid,
        }


def modes(node: DriverNode) -> set[int]:
    """Compute modes of the node's cards."""
    return {state.compute_mode for state in Store(node.sim).read().gpus.values()}


@pytest.fixture(scope="module")
def policy(cluster: LocalCluster) -> Path:
    path = cluster.layout.root / "bad-input-policy.yaml"
    path.write_text("orphanGraceSeconds: 86400\n")
    return path


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster, policy: Path) -> Iterator[DriverNode]:
    options = ("--refresh-interval=0.5", "--reconcile-interval=1", f"--config={policy}")
    node = start_driver(cluster, *options)
    node.wait_published(8)
    yield node
    node.process.stop()


@pytest.fixture(scope="module")
def bystander(driver: DriverNode) -> Iterator[Bystander]:
    kube = driver.kube
    name = kube.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "bystander-"}}
    )["metadata"]["name"]
    kube.wait("ServiceAccount", "default", lambda _: True, namespace=name)
    kube.apply(template("bystander", name, claim_spec()))
    kube.apply(pod("bystander", name, templates={"c": "bystander"}))
    kube.wait_pod("bystander", namespace=name)
    assert len(uuids(seen(kube, "bystander", name)[0])) == 1
    yield Bystander(driver, name, driver.process.pid)
    kube.delete("Pod", "bystander", name, grace_s=0)
    driver.wait_clean()
    kube.delete("Namespace", name)


@pytest.fixture
def slices_are_wanted_to_change() -> None:
    """For tests that change what is published."""


@pytest.fixture(autouse=True)
def nothing_else_is_affected(
    bystander: Bystander, request: pytest.FixtureRequest
) -> Iterator[None]:
    bystander.slices_too = "slices_are_wanted_to_change" not in request.fixturenames
    before = bystander.state()
    yield
    poll(
        lambda: bystander.state() == before,
        "all to be as before the bad input",
        timeout_s=20,
        detail=lambda: f"{before} became {bystander.state()}",
    )


@pytest.fixture
def free(driver: DriverNode, bystander: Bystander) -> Object:
    """An allocation result: a device that nobody holds."""
    return result(free_device(driver, bystander.namespace))


def free_device(driver: DriverNode, namespace: str) -> str:
    held = held_device(driver.kube, namespace)
    return next(str(d["name"]) for d in driver.devices() if d["name"] != held)


def held_device(kube: Kube, namespace: str) -> str:
    (found,) = kube.list("ResourceClaim", namespace)
    return str(found["status"]["allocation"]["devices"]["results"][0]["device"])


def result(device: str, **more: str) -> Object:
    return {"driver": DRIVER, "device": device, **more}


@pytest.fixture
def hand(kube: Kube, namespace: str, cluster: LocalCluster):
    """Allocate by hand, in the node's pool unless the result says otherwise."""

    def make(name: str, results: list[Object], *config: Object) -> ClaimRef:
        filled = [{"pool": cluster.node_name, **each} for each in results]
        return allocated_by_hand(kube, namespace, name, filled, *config)

    return make


def gpu_config(**fields: object) -> Object:
    return {"apiVersion": API, "kind": "GpuConfig", **fields}


@pytest.fixture
def other(cluster: LocalCluster) -> Iterator[DriverNode]:
    """Another plugin with folders and cards of its own. Not started."""
    node = other_driver(cluster, "bad.example.com", 8090, "--refresh-interval=0.5")
    yield node
    node.process.stop()
    for folder in (node.plugin_dir, node.sim):
        shutil.rmtree(folder, ignore_errors=True)
    for path in node.cdi_files():
        path.unlink()


def hand_of(node: DriverNode, device: int = 0) -> list[Object]:
    devices = sorted(each["name"] for each in node.devices())
    return [{"driver": node.name, "device": devices[device]}]
