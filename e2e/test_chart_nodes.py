"""Several nodes with simulated cards of their own: what goes where, and what a node leaves."""

from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Object
from e2e.cluster.polling import poll
from e2e.sites.installed import CARDS, Installed, installed
from e2e.sites.pods import start, submit
from e2e.sites.site import Site
from e2e.workloads import exactly, is_pending

pytestmark = pytest.mark.needs("several nodes", "look at nodes")


@pytest.fixture(scope="module")
def release(site: Site) -> Iterator[Installed]:
    if "several nodes" not in site.abilities:  # the mark is looked at later than this
        pytest.skip(f"provider {site.name} cannot: several nodes")
    with installed(site) as running:
        yield running


@pytest.fixture(scope="module")
def workers(release: Installed) -> list[str]:
    found = release.site.workers()
    assert len(found) == 2
    return found


def on(node: str) -> Object:
    """Part of a pod's spec: only this node."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def test_each_worker_has_cards_of_its_own(release: Installed, workers: list[str]):
    cards = [
        {
            each["attributes"]["uuid"]["string"]
            for each in release.devices(node)
            if each["attributes"]["type"] == {"string": "gpu"}
        }
        for node in workers
    ]

    assert [len(found) for found in cards] == [CARDS, CARDS]
    assert not cards[0] & cards[1]


def test_pods_on_two_workers_get_the_cards_of_theirs(
    release: Installed, room: str, workers: list[str]
):
    users = [start(release.site, room, f"on-{n}", **on(node)) for n, node in enumerate(workers)]

    assert [user.node() for user in users] == workers
    assert users[0].card() != users[1].card()
    for user, node in zip(users, workers, strict=True):
        assert release.records(node)
        user.end()
        release.wait_clean(node)


def test_a_claim_that_fits_on_the_other_worker_alone_goes_there(
    release: Installed, room: str, workers: list[str]
):
    full, other = workers
    first = start(release.site, room, "all-cards", exactly(count=CARDS), **on(full))

    second = start(release.site, room, "one-card")
    third = start(release.site, room, "other-cards", exactly(count=CARDS - 1))
    submit(release.site, room, "no-card")

    assert [second.node(), third.node()] == [other, other]
    release.kube.wait("Pod", "no-card", is_pending, namespace=room)
    first.end()
    late = release.kube.wait_pod("no-card", namespace=room, timeout_s=120)
    assert late["spec"]["nodeName"] == full
    for user in (second, third):
        user.end()


def test_a_drained_worker_keeps_nothing(release: Installed, room: str, workers: list[str]):
    node = workers[0]
    user = start(release.site, room, "evicted", exactly(count=CARDS), **on(node))
    uids = release.uids()

    release.kube.kubectl("drain", node, "--ignore-daemonsets", "--force", "--timeout=60s")

    release.kube.wait_gone("Pod", user.name, room)
    release.wait_clean(node)
    assert release.uids() == uids, "the plugin stays, it has work to undo"
    release.kube.kubectl("uncordon", node)
    again = start(release.site, room, "back", exactly(count=CARDS), **on(node))
    again.end()
    release.wait_clean(node)


@pytest.mark.needs("stop a node")
def test_a_deleted_node_takes_its_resourceslices_with_it_and_comes_back(
    release: Installed, workers: list[str]
):
    node = workers[-1]
    assert release.slices(node)

    release.site.stop_node(node)
    release.kube.delete("Node", node)

    poll(lambda: not release.slices(node), f"the ResourceSlices of {node} to go", timeout_s=180)
    assert release.slices(workers[0])
    # Its pods are forgotten later than the Node; a Node that is back before keeps them.
    poll(
        lambda: not [pod for pod in release.pods() if pod["spec"]["nodeName"] == node],
        f"the plugin of {node} to be forgotten",
        timeout_s=240,
    )
    release.site.start_node(node)
    release.kube.wait("Node", node, lambda _: True, timeout_s=120)
    poll(lambda: len(release.site.workers()) == 2, f"{node} to be back", timeout_s=180)
    release.wait_published()
