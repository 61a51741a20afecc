"""A plugin that looks often, and pods that hold a card: what recovery tests are about."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from driver.sim import control
from e2e.cluster.local import LocalCluster
from e2e.driver_node import DriverNode, start_driver
from e2e.workloads import claim_spec, pod, template


@contextmanager
def looking_often(cluster: LocalCluster) -> Iterator[DriverNode]:
    """A plugin of the test's own whose periods are short, so that nobody waits for a minute.

    Afterwards API server and plugin run again, all test pods are gone, and nothing is left.
    """
    policy = cluster.layout.root / "policy.yaml"
    policy.write_text("orphanGraceSeconds: 2\n")
    node = start_driver(
        cluster,
        "--health-interval=0.2",
        "--refresh-interval=0.5",
        "--reconcile-interval=1",
        f"--config={policy}",
    )
    control.clear_faults(node.sim)
    node.wait_published(8)
    yield node
    if not cluster.apiserver.running:
        cluster.apiserver.start()
    if not node.process.running:
        node.process.start()
    for item in cluster.kube.request("GET", "/api/v1/pods")["items"]:
        meta = item["metadata"]
        if meta["namespace"].startswith("test-"):
            cluster.kube.delete("Pod", meta["name"], meta["namespace"], grace_s=0)
    node.wait_clean()
    node.process.stop()


@dataclass
class User:
    """A running pod with a card of its own."""

    driver: DriverNode
    namespace: str
    name: str
    uid: str
    restarts: int = 0

    def same(self) -> None:
        """It still runs, was not restarted, and its record and CDI file are there."""
        found = self.driver.kube.get("Pod", self.name, self.namespace)
        assert found["metadata"]["uid"] == self.uid
        assert found["status"]["phase"] == "Running"
        assert [c["restartCount"] for c in found["status"]["containerStatuses"]] == [0]
        assert len(self.driver.records()) == len(self.driver.cdi_files()) == 1

    def delete(self) -> None:
        self.driver.kube.delete("Pod", self.name, self.namespace, grace_s=0)


def start_user(driver: DriverNode, namespace: str, name: str = "user") -> User:
    kube = driver.kube
    kube.apply(
        [template(name, namespace, claim_spec()), pod(name, namespace, templates={"c": name})]
    )
    # After an outage the controllers and the kubelet come back with their own back-off.
    found = kube.wait_pod(name, namespace=namespace, timeout_s=180)
    return User(driver, namespace, name, found["metadata"]["uid"])
