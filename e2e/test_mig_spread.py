"""Partitions of two cards: a claim may want them on different ones."""

from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.cluster.provider import chosen_kubernetes
from e2e.driver_node import DRIVER, DriverNode
from e2e.partitions import cutting, instances, part, remove_pods, wait_no_instances
from e2e.workloads import claim_spec, is_pending, pod, template

pytestmark = pytest.mark.timeout(400)

APART = {"distinctAttribute": f"{DRIVER}/parentUUID"}


@pytest.fixture(autouse=True)
def keeps_apart() -> None:
    if chosen_kubernetes() == "1.34":
        pytest.skip("the scheduler of 1.34.4 passes over distinctAttribute")


@pytest.fixture
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    with cutting(cluster, "h100-80gb:2") as node:
        yield node


def test_two_partitions_of_different_cards_and_no_third_one(
    kube: Kube, namespace: str, driver: DriverNode
):
    for name, requests in {
        "two": [part("1g.10gb", "a"), part("1g.10gb", "b")],
        "three": [part("1g.10gb", "a"), part("1g.10gb", "b"), part("1g.10gb", "c")],
    }.items():
        spec = claim_spec(*requests, constraints=[APART])
        kube.apply([template(name, namespace, spec), pod(name, namespace, templates={"c": name})])
    kube.wait_pod("two", namespace=namespace)
    kube.wait("Pod", "three", is_pending, namespace=namespace)
    assert sorted(card for card, _, _ in instances(driver.sim)) == [0, 1]
    remove_pods(kube)
    driver.wait_clean()
    wait_no_instances(driver)
