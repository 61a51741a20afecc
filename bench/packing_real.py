"""``python -m bench.packing_real``: the simulation of orders against the real kube-scheduler.

On a booted cluster a node that is an object only gets the ResourceSlices of eight cards, once in
the naive order and once in a searched one. The claims of one stream come and go one by one, each
with a pod that never runs. Printed: rejected GPU slices by the scheduler and by the simulation,
and how many claims got the same placement from both.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import click

from api.policy import GpuPolicy, GpuRule, GpuSelector, NodePolicy
from bench.packing_mixes import CARDS, MIXES, SEARCHED_LOAD, mixes
from bench.packing_pods import CLASS, NODE, Desk, node_object
from cli import offline
from driver.model.devices import MigPartition
from driver.model.gpu import Inventory
from driver.model.ids import PciAddress
from driver.plan.allocatable import allocatable
from driver.plan.order import Order, applied, naive
from driver.plan.order_search import Problem, around, search
from driver.plan.order_sim import Mix, Stream, given, poisson, slices_of
from driver.plan.partitions import shape
from driver.plan.resources import driver_resources
from driver.plan.topology import pci_order
from driver.settings import DEFAULT_DRIVER
from driver.sim.profiles import PROFILES
from e2e.cluster import build
from e2e.cluster.kube import Kube, Object
from e2e.cluster.layout import ClusterSpec
from e2e.cluster.local import LocalCluster
from kubeletplugin.plan_publish import Identity, plan_publish

Spot = tuple[int, int] | None  # number of the card and start; None: rejected


@dataclass(frozen=True)
class Fleet:
    """The cards of the node and what they offer."""

    inventory: Inventory
    partitions: Mapping[tuple[PciAddress, str, int], MigPartition]

    @classmethod
    def of(cls, product: str) -> "Fleet":
        found = offline.inventory(product, CARDS, NODE)
        policy = NodePolicy(gpus=(GpuRule(GpuSelector(), GpuPolicy(("mig",))),))
        devices = (each for each in allocatable(found, policy) if isinstance(each, MigPartition))
        by_place = {(each.gpu.pci, each.profile.name, each.start): each for each in devices}
        return cls(found, by_place)

    @property
    def cards(self) -> list[PciAddress]:
        return sorted((gpu.pci for gpu in self.inventory.gpus), key=pci_order)

    def resource_slices(self, order: Order) -> tuple[Object, ...]:
        """As the driver publishes them, with this order."""
        shapes = [shape(profile) for profile in self.inventory.gpus[0].mig_profiles]
        walks = applied(order, self.cards, shapes)
        devices = [
            self.partitions[place.card, place.profile, place.start]
            for walk in walks.values()
            for place in walk
        ]
        pool = driver_resources(devices, self.inventory, {}, pool=NODE, features={"counters"})
        return plan_publish(pool, [], Identity(DEFAULT_DRIVER, NODE)).create

    def spots(self) -> Mapping[str, Spot]:
        """Device name → where it lies."""
        number = {pci: i for i, pci in enumerate(self.cards)}
        return {each.name: (number[pci], start) for (pci, _, start), each in self._items()}

    def _items(self) -> Iterator[tuple[tuple[PciAddress, str, int], MigPartition]]:
        yield from self.partitions.items()


# Ampere lists no profiles before its MIG mode is on, and that takes a reset.
_PRODUCTS = [
    key for key, each in PROFILES.items() if each.mig_capable and not each.mig_needs_reset
]


@click.command(help=__doc__)
@click.option("--product", type=click.Choice(_PRODUCTS), default="h100-80gb", show_default=True)
@click.option("--mix", type=click.Choice(list(MIXES)), default="mid", show_default=True)
@click.option("--load", default=SEARCHED_LOAD, show_default=True)
@click.option("--claims", type=click.IntRange(1), default=300, show_default=True)
@click.option("--tries", type=click.IntRange(1), default=300, show_default=True)
def main(product: str, mix: str, load: float, claims: int, tries: int) -> None:
    """See the module."""
    fleet = Fleet.of(product)
    shapes = [shape(profile) for profile in fleet.inventory.gpus[0].mig_profiles]
    shares = mixes(PROFILES[product])[mix]
    stream = poisson(Mix(shares, load), shapes, CARDS, claims, f"real {product} {mix} {load}")
    steps = islice(search(Problem(shapes, CARDS, around(shares, SEARCHED_LOAD))), tries)
    orders = {"naive": naive(shapes), "searched": [step.best for step in steps][-1]}
    build.build_all()
    spec = ClusterSpec(name=os.environ.get("ALIQUOT_E2E_NAME") or "packing")
    with LocalCluster(spec) as cluster:
        cluster.kubelet.stop()  # the pods' node has none, and the other is in nobody's way
        for name, order in orders.items():
            got = _by_scheduler(cluster.kube, fleet, order, stream)
            told = given(stream, order, shapes, CARDS)
            same = sum(a == b for a, b in zip(got, told, strict=True))
            weights = slices_of(stream, shapes)
            rates = [_rate(spots, stream, weights) for spots in (got, told)]
            text = f"scheduler {rates[0]:.4f}, simulation {rates[1]:.4f} rejected"
            print(f"{name}: {text}; {same} of {claims} claims got the same", flush=True)


def _rate(spots: Sequence[Spot], stream: Stream, weights: Sequence[int]) -> float:
    """Rejected GPU slices to all."""
    all_of_them = [weights[kind] for kind in stream.kinds]
    lost = sum(n for n, spot in zip(all_of_them, spots, strict=True) if spot is None)
    return lost / sum(all_of_them)


def _by_scheduler(kube: Kube, fleet: Fleet, order: Order, stream: Stream) -> list[Spot]:
    """What each claim of the stream got."""
    published = fleet.resource_slices(order)
    selector = f"device.driver == '{DEFAULT_DRIVER}'"
    class_object: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": selector}}]},
    }
    objects = [node_object(), class_object, *published]
    for each in objects:
        kube.create(each)
    spots, desk = fleet.spots(), Desk(kube, DEFAULT_DRIVER)
    got: list[Spot] = [None] * len(stream.kinds)
    for event in stream.events:
        if event >= 0:
            device = desk.ask(event, stream.profiles[stream.kinds[event]])
            got[event] = None if device is None else spots[device]
        elif got[~event] is not None:
            desk.release(~event)
    for each in objects:
        kube.delete(each["kind"], each["metadata"]["name"])
    return got


if __name__ == "__main__":
    main()
