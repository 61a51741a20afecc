"""Pods with partitions come and go while kubelet and plugin are killed."""

import random
import time
from dataclasses import dataclass, field

from e2e.cluster.local import LocalCluster
from e2e.driver_node import DriverNode
from e2e.partitions import part
from e2e.workloads import claim_spec, exactly, pod, template

KINDS = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "whole")
MOST_PODS = 10
_PAUSE_S = 0.3


@dataclass
class CutChurn:
    """One card or more of H100 80GB is cut, joined and cut again, as ``rng`` decides."""

    cluster: LocalCluster
    driver: DriverNode
    namespace: str
    rng: random.Random
    alive: list[str] = field(default_factory=list)
    started: int = 0
    kills: int = 0

    def run(self, seconds: float) -> None:
        """Until the time is over; then every pod is asked to go."""
        kube = self.cluster.kube
        for kind in KINDS:
            request = exactly() if kind == "whole" else part(kind)
            kube.apply([template(_name(kind), self.namespace, claim_spec(request))])
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._one()
            time.sleep(_PAUSE_S)
        self.driver.process.wait_ready()
        while self.alive:
            self._delete(self.alive.pop())

    def _one(self) -> None:
        if len(self.alive) < MOST_PODS and self.rng.random() < 0.7:
            name = f"cut-{self.started}"
            kind = _name(self.rng.choice(KINDS))
            self.cluster.kube.apply([pod(name, self.namespace, templates={"c": kind})])
            self.alive.append(name)
            self.started += 1
        elif self.alive:
            self._delete(self.alive.pop(self.rng.randrange(len(self.alive))))
        if self.rng.random() < 0.15:
            victim = self.rng.choice((self.driver.process, self.cluster.kubelet))
            victim.kill()
            victim.start()
            self.kills += 1

    def _delete(self, name: str) -> None:
        self.cluster.kube.delete("Pod", name, self.namespace, grace_s=1)


def _name(kind: str) -> str:
    return kind.replace(".", "-")
