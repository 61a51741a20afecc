"""The cluster, the plugin and the namespace of a soak, and how it is left clean."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from driver.sim import control
from driver.sim.store import Store
from e2e.cluster.errors import WaitTimeoutError
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DriverNode, start_driver
from e2e.soak.report import Report
from e2e.workloads import SLEEP, claim_spec, exactly, opaque, pod, template

CARDS = 8
SETTLE_S = 240.0  # the kubelet tries a failed prepare or unprepare again after 60 to 90 s
_GRACE_S = 2


@dataclass
class Scene:
    cluster: LocalCluster
    driver: DriverNode
    namespace: str
    rng: random.Random
    report: Report

    @property
    def kube(self) -> Kube:
        return self.cluster.kube

    def modes(self) -> int:
        """How many cards have a compute mode other than the default one."""
        states = Store(self.driver.sim).read().gpus.values()
        return sum(state.compute_mode != 0 for state in states)

    def pods(self) -> list[Object]:
        return self.kube.list("Pod", self.namespace)

    def start_pod(self, name: str, template_name: str) -> None:
        body = pod(name, self.namespace, SLEEP, templates={"c": template_name})
        body["spec"]["terminationGracePeriodSeconds"] = _GRACE_S
        self.kube.apply(body)

    def delete_pods(self) -> None:
        for found in self.pods():
            self.kube.delete("Pod", found["metadata"]["name"], self.namespace, grace_s=_GRACE_S)

    def settle(self, phase: str) -> None:
        """Everything is deleted; what is still there after a long while has leaked."""
        if not self.cluster.apiserver.running:
            self.cluster.apiserver.start()
        for index in range(CARDS):
            control.restore(self.driver.sim, index)
        if not self.driver.process.running:
            self.driver.process.launch()
        self.driver.process.wait_ready()
        self.delete_pods()
        wait_counted(lambda: not self.pods(), "pods to go")
        wait_counted(
            lambda: not (self.driver.records() or self.driver.cdi_files() or self.modes()),
            "the node to be clean",
        )
        wait_counted(lambda: len(self.driver.devices()) == CARDS, "all cards to be published")
        self.report.add(phase, "stuck pods", len(self.pods()))
        self.report.add(phase, "leaked records", len(self.driver.records()))
        self.report.add(phase, "leaked CDI files", len(self.driver.cdi_files()))
        self.report.add(phase, "leaked compute modes", self.modes())
        self.report.add(phase, "cards not published", CARDS - len(self.driver.devices()))
        tainted = sum(bool(device.get("taints")) for device in self.driver.devices())
        self.report.add(phase, "cards with a taint", tainted)


def wait_counted(probe: object, what: str) -> None:
    """What does not come is counted afterwards, not raised here."""
    assert callable(probe)
    try:
        poll(probe, what, SETTLE_S, interval_s=0.5)
    except WaitTimeoutError as error:
        print(error, flush=True)  # noqa: T201 - a command's output


def exclusive() -> Object:
    """A claim that changes the card, so that there is something to take back."""
    parameters = {
        "apiVersion": "gpu.aliquot.dev/v1alpha1",
        "kind": "GpuConfig",
        "computeMode": "ExclusiveProcess",
    }
    return claim_spec(config=[opaque("gpu.aliquot.dev", parameters)])


TEMPLATES = {"one": claim_spec, "two": lambda: claim_spec(exactly(count=2)), "mode": exclusive}


@contextmanager
def scene(cluster: LocalCluster, seed: int) -> Iterator[Scene]:
    """The plugin runs, and a namespace has templates of each kind."""
    policy = cluster.layout.root / "soak-policy.yaml"
    policy.write_text("orphanGraceSeconds: 5\n")
    driver = start_driver(cluster, "--reconcile-interval=5", f"--config={policy}")
    driver.wait_published(CARDS)
    kube, namespace = cluster.kube, f"soak-{seed}"
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    kube.wait("ServiceAccount", "default", lambda _: True, namespace=namespace)
    kube.apply([template(name, namespace, make()) for name, make in TEMPLATES.items()])
    yield Scene(cluster, driver, namespace, random.Random(seed), Report())  # noqa: S311
    driver.process.stop()
