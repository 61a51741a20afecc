"""What the layout of our ResourceSlices costs kube-scheduler: its CPU for each placed claim.

Nodes that are objects only publish the ResourceSlices of eight cards each with all that a card can
be offered as, once as the driver lays them out (whole cards and shares in front of all partitions)
and once with the partitions in front. The pods never run: their nodes have no kubelet.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from api.policy import GpuPolicy, GpuRule, GpuSelector, NodePolicy
from bench.booted import Bed
from bench.stats import table
from cli import offline
from driver.plan.allocatable import allocatable
from driver.plan.layout import EVERYTHING
from driver.plan.resources import driver_resources
from driver.settings import DEFAULT_DRIVER
from e2e.cluster.kube import Kube, Object
from e2e.cluster.polling import poll
from kubeletplugin.contract import DesiredPool
from kubeletplugin.plan_publish import Identity, plan_publish

_NODES, _BOARD, _CARDS = 20, "h100-80gb", 8
_NAMESPACE = "default"
_POLICY = NodePolicy(gpus=(GpuRule(GpuSelector(), GpuPolicy(("gpu", "mps", "timeslice", "mig"))),))
_WANTS = {  # as the class selects, then as the claim does: devices of another type have no profile
    "whole card": ('type == "gpu"',),
    "share of 1/48": ('type == "mps"',),
    "1g.10gb": ('type == "mig"', 'profile == "1g.10gb"'),
}
_TICKS = os.sysconf("SC_CLK_TCK")


def pool(node: str) -> DesiredPool:
    """As the driver on this node publishes it."""
    inventory = offline.inventory(_BOARD, _CARDS, node)
    devices = allocatable(inventory, _POLICY, features=EVERYTHING, sharing=offline.SHARING)
    return driver_resources(devices, inventory, {}, pool=node, features=EVERYTHING)


def partitions_first(found: DesiredPool) -> DesiredPool:
    """The same devices; whole cards are looked at last."""
    moved = (
        replace(each, key=each.key.replace("00-cards", "80-cards", 1)) for each in found.slices
    )
    return replace(found, slices=tuple(sorted(moved, key=lambda each: each.key)))


def cpu(bed: Bed, count: int) -> dict[str, Any]:
    """Milliseconds of the scheduler's CPU a placed claim, by layout and kind of claim."""
    kube, found = bed.cluster.kube, {}
    many = min(count, _NODES * _CARDS - 10)
    bed.cluster.kubelet.stop()  # the cluster's own node is in nobody's way
    try:
        for layout in ("whole first", "partitions first"):
            with _fleet(kube, layout == "partitions first"):
                for kind, wanted in _WANTS.items():
                    found[layout, kind] = _placed(bed, wanted, many)
    finally:
        bed.cluster.kubelet.start()
    rows = [
        [kind, *(f"{found[x, kind]:.1f}" for x in ("whole first", "partitions first"))]
        for kind in _WANTS
    ]
    print(f"\nkube-scheduler's CPU a placed claim, {_NODES} nodes of {_CARDS} cards, n = {many}")
    print(table(("claim", "whole first (ours), ms", "partitions first, ms"), rows))
    return {f"{layout}: {kind}": ms for (layout, kind), ms in found.items()}


@contextmanager
def _fleet(kube: Kube, reverse: bool) -> Iterator[None]:
    made: list[Object] = []
    try:
        for number in range(_NODES):
            node = f"cards-{number:02}"
            wanted = partitions_first(pool(node)) if reverse else pool(node)
            objects = plan_publish(wanted, [], Identity(DEFAULT_DRIVER, node)).create
            made += [kube.create(each) for each in (_node(node), *objects)]
        made.append(kube.create(_class()))
        yield
    finally:
        for each in made:
            kube.delete(each["kind"], each["metadata"]["name"])


def _placed(bed: Bed, wanted: Sequence[str], count: int) -> float:
    """Milliseconds of CPU a claim, from the first pod to the last placement."""
    kube = bed.cluster.kube
    names = [f"placed-{number}" for number in range(count)]
    for name in names:
        kube.create(_claim(name, wanted))
    before = _cpu_s(bed.cluster.scheduler.pid)
    for name in names:
        kube.create(_pod(name))
    poll(lambda: _decided(kube) >= count, f"{count} pods placed", timeout_s=300, interval_s=0.2)
    took = _cpu_s(bed.cluster.scheduler.pid) - before
    for name in names:
        kube.delete("Pod", name, _NAMESPACE, grace_s=0)
        kube.delete("ResourceClaim", name, _NAMESPACE)
    poll(lambda: not kube.list("ResourceClaim", _NAMESPACE), "the claims to go", timeout_s=120)
    return took * 1e3 / count


def _decided(kube: Kube) -> int:
    return sum(bool(each["spec"].get("nodeName")) for each in kube.list("Pod", _NAMESPACE))


def _cpu_s(pid: int) -> float:
    """User and system time of a process (proc(5): fields 14 and 15 of stat)."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _node(name: str) -> Object:
    amounts = {"cpu": "1000", "memory": "1000Gi", "pods": "1000"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def _class() -> Object:
    selectors = [{"cel": {"expression": f"device.driver == '{DEFAULT_DRIVER}'"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "bench-cards"},
        "spec": {"selectors": selectors},
    }


def _claim(name: str, wanted: Sequence[str]) -> Object:
    domain = f"device.attributes['{DEFAULT_DRIVER}']"
    selectors: Sequence[Object] = [{"cel": {"expression": f"{domain}.{each}"}} for each in wanted]
    exactly = {"deviceClassName": "bench-cards", "selectors": selectors}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def _pod(name: str) -> Object:
    container = {"name": "c", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],  # nodes without a kubelet are not Ready
        },
    }
