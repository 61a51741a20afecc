"""SIGKILL of the plugin at every effect of a share's prepare and unprepare: the first share of a
card, whose daemon starts and ends with it, and one beside a share that lives on."""

import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER
from e2e.partitions import remove_pods
from e2e.sharing import SharingNode, share, sharing, start
from e2e.test_every_step import EXCLUSIVE, answer, dies
from e2e.workloads import allocated_by_hand, released_by_hand
from kubeletplugin.contract import ClaimRef

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def crash_file(cluster: LocalCluster) -> Path:
    return cluster.layout.root / "crash"


@pytest.fixture(scope="module")
def crashing(cluster: LocalCluster, crash_file: Path) -> Iterator[SharingNode]:
    """The plugin under ``e2e.crashing``."""
    crash_file.write_text("")
    with sharing(cluster, "h100-80gb:1") as node:
        node.process.stop()
        argv = list(node.process.argv)
        crashing = ["-m", "e2e.crashing", str(crash_file)]
        node.process.argv = [sys.executable, *crashing, *argv[argv.index("node") :]]
        node.process.start()
        yield node
        crash_file.write_text("")


class Case:
    """Claims for a share of the card, and what must be true of it."""

    def __init__(self, node: SharingNode, kube: Kube, namespace: str, *, beside: bool) -> None:
        self.node, self.kube, self.namespace = node, kube, namespace
        self.others = int(beside)
        if beside:
            start(kube, namespace, "bystander", share("20Gi", "25"))
            kube.wait_pod("bystander", namespace=namespace, timeout_s=120)
        self.pids = node.pids()
        names = [each["name"] for each in node.devices(shared=True)]
        self.device = next(name for name in names if name.endswith("-mps"))

    def claim(self, name: str) -> ClaimRef:
        result = {
            "driver": DRIVER,
            "pool": self.node.cluster.node_name,
            "device": self.device,
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": {"memory": "14Gi", "computePercent": "25", "shares": "1"},
        }
        return allocated_by_hand(self.kube, self.namespace, name, [result])

    def all_or_nothing(self) -> None:
        """Record, CDI file, compute mode and daemon belong together."""
        node = self.node
        held = len(node.records())
        assert self.others <= held <= self.others + 1
        assert len(node.cdi_files()) == held
        wanted = [EXCLUSIVE] * bool(held)
        assert node.modes() == wanted
        assert len(node.daemons()) == len(wanted)
        if self.others:
            assert node.pids() == self.pids

    def prepared(self, ref: ClaimRef) -> None:
        found = self.node.prepare(ref)
        assert found.error == ""
        assert [device.device for device in found.devices] == [self.device]
        assert ref.uid in self.node.records()
        assert self.node.modes() == [EXCLUSIVE]
        assert self.node.daemon().running

    def gone(self, ref: ClaimRef) -> None:
        assert self.node.unprepare(ref) == ""
        assert len(self.node.records()) == self.others
        self.all_or_nothing()
        released_by_hand(self.kube, ref)

    def end(self) -> None:
        """The bystander was never disturbed, and leaves nothing behind."""
        for item in self.kube.list("Pod", self.namespace):
            assert [c["restartCount"] for c in item["status"]["containerStatuses"]] == [0]
        remove_pods(self.kube)
        self.node.wait_nothing_left()


KINDS = [
    pytest.param(False, "", id="first"),
    pytest.param(True, "", id="beside"),
    pytest.param(False, "\nrecover 1", id="first-and-in-recovery"),
]


@pytest.mark.parametrize(("beside", "again"), KINDS)
def test_death_at_every_effect_of_a_shares_prepare(
    crashing: SharingNode, crash_file: Path, kube: Kube, namespace: str, beside: bool, again: str
):
    case = Case(crashing, kube, namespace, beside=beside)
    at, died = 0, True
    while died:
        at += 1
        ref = case.claim(f"claim-{at}")
        act = partial(answer, crashing.prepare, ref)
        died = dies(crashing, crash_file, f"prepare {at}{again}", act)
        case.all_or_nothing()
        case.prepared(ref)
        case.gone(ref)
    # First: two records of three effects each, mode and daemon, the CDI file, the answer. Beside
    # others: one record that nobody waits for, the CDI file, the answer.
    assert at > (3 if beside else 9)
    case.end()


@pytest.mark.parametrize(("beside", "again"), KINDS)
def test_death_at_every_effect_of_a_shares_unprepare(
    crashing: SharingNode, crash_file: Path, kube: Kube, namespace: str, beside: bool, again: str
):
    case = Case(crashing, kube, namespace, beside=beside)
    at, died = 0, True
    while died:
        at += 1
        ref = case.claim(f"claim-{at}")
        case.prepared(ref)
        act = partial(answer, crashing.unprepare, ref)
        died = dies(crashing, crash_file, f"unprepare {at}{again}", act)
        case.all_or_nothing()
        case.gone(ref)
    assert at > (
        3 if beside else 5
    )  # CDI file, record, its folder; daemon and mode after the last
    case.end()


def test_the_supervisor_dies_while_a_share_is_prepared(
    crashing: SharingNode, kube: Kube, namespace: str
):
    """Refused with where to look. The record stays, since what was asked may have been done, and
    all is well when the supervisor is back."""
    case = Case(crashing, kube, namespace, beside=False)
    crashing.supervisor.kill()
    ref = case.claim("claim")
    found = crashing.prepare(ref)
    assert "MPS supervisor" in found.error
    assert crashing.cdi_files() == []
    crashing.supervisor.start()
    poll(lambda: not crashing.prepare(ref).error, "the supervisor to be found again")
    case.prepared(ref)
    case.gone(ref)
    case.end()
