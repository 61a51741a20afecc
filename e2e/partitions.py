"""Simulated cards that are cut up: a plugin that allows it, and what lies on the cards."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.classes import all_classes
from cli.offline import mig_profiles
from driver.sim import files, topology
from driver.sim.partition import instance_id
from driver.sim.profiles import PROFILES
from driver.sim.store import Store
from driver.sim.world import ComputeInstance, GpuInstance, mig_uuid
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, start_driver
from e2e.workloads import exactly

OFTEN = ("--health-interval=0.5", "--refresh-interval=0.5", "--reconcile-interval=1")
POLICY = """
orphanGraceSeconds: 2
gpus: [{select: {all: true}, modes: [gpu, mig], adoptExisting: true}]
"""


@contextmanager
def cutting(cluster: LocalCluster, simulate: str) -> Iterator[DriverNode]:
    """A plugin that offers its cards whole and in partitions. Its cards are as new at first and
    its classes answer for the resources of NVIDIA's device plugin."""
    policy = cluster.layout.root / "cutting.yaml"
    policy.write_text(POLICY)
    node = start_driver(cluster, f"--config={policy}", *OFTEN, simulate=simulate)
    board = simulate.partition(":")[0]
    cluster.kube.apply(all_classes(DRIVER, mig_profiles(board), "nvidia.com/gpu", extended=True))
    node.wait_published()
    try:
        yield node
    finally:
        if not node.process.running:
            node.process.start()
        remove_pods(cluster.kube)
        node.wait_clean()
        node.process.stop()


def remove_pods(kube: Kube) -> None:
    """All pods of tests, whatever keeps them from ending by themselves."""
    for item in kube.request("GET", "/api/v1/pods")["items"]:
        meta = item["metadata"]
        if meta["namespace"].startswith("test-"):
            kube.delete("Pod", meta["name"], meta["namespace"], grace_s=0)


def instances(sim: Path) -> list[tuple[int, int, int]]:
    """Every GPU instance on the node: card, start, size."""
    world = Store(sim).read()
    return sorted(
        (index, each.start, each.size)
        for index in range(world.count)
        for each in world.gpu(index).instances
    )


def wait_no_instances(node: DriverNode, but: int = 0) -> None:
    poll(
        lambda: len(instances(node.sim)) == but,
        f"{but} instances to be left",
        detail=lambda: str(instances(node.sim)),
    )


def by_hand(sim: Path, index: int, profile: str, start: int) -> str:
    """An instance that an administrator makes; returns its UUID."""
    store = Store(sim)
    with store.update() as world:
        state = world.change(index)
        board = PROFILES[world.profile]
        row = next(each for each in board.gpu_instance_profiles if each.name == profile)
        state.mig_current = state.mig_pending = True
        number = instance_id(board, start, row.size)
        card = topology.cards(board, world.count, world.seed)[index]
        uuid = mig_uuid(world, card.uuid, number, 0)
        inner = next(c for c in row.compute_profiles() if c.slices == row.slices)
        taken = {c.index for each in state.instances for c in each.compute}
        first = next(n for n in range(len(taken) + 1) if n not in taken)
        compute = ComputeInstance(0, inner.profile, 0, inner.slices, first, uuid)
        state.instances.append(GpuInstance(number, row.id, start, row.size, [compute]))
        minor = index if state.minor is None else state.minor
        files.write_instance(store.root, minor, number)
        files.write_instance(store.root, minor, number, 0)
    return uuid


def not_by_hand(sim: Path, index: int, start: int) -> None:
    """The administrator destroys the instance at this start."""
    store = Store(sim)
    with store.update() as world:
        state = world.change(index)
        minor = index if state.minor is None else state.minor
        for each in [each for each in state.instances if each.start == start]:
            state.instances.remove(each)
            files.remove_instance(store.root, minor, each.id)


def wait_listed(node: DriverNode, cards: int = 1) -> None:
    """Until the plugin has written down what it adopts: what comes later is strange."""
    known = node.plugin_dir / "node" / "cards.json"
    poll(
        lambda: len(json.loads(known.read_text().partition("\n")[2]).get("adopted", {})) == cards,
        "the lists of adopted partitions",
    )


def part(profile: str, name: str = "gpu", start: int | None = None) -> Object:
    """A request for one partition of this profile, perhaps of this placement."""
    domain = f'device.attributes["{DRIVER}"]'
    cel = [f'{domain}.profile == "{profile}"']
    cel += [] if start is None else [f"{domain}.placementStart == {start}"]
    return exactly(name, 1, *cel, deviceClassName="mig")


def parent(kube: Kube, namespace: str) -> list[str]:
    """Devices allocated in a namespace."""
    return [
        result["device"]
        for item in kube.list("ResourceClaim", namespace)
        for result in item.get("status", {}).get("allocation", {}).get("devices", {})["results"]
    ]
