"""SIGKILL at every effect of prepare and of unprepare, and again during the recovery.

The claims are real objects of the API server, allocated by the test, and the calls come over the
plugin's socket: the kubelet tries again only after a minute. One death of each kind is also run
under the kubelet itself.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import grpc.aio
import pytest

from driver.sim.store import Store
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, start_driver
from e2e.users import User, start_user
from e2e.workloads import allocated_by_hand, claim_spec, pod, released_by_hand, template
from kubeletplugin.contract import ClaimRef
from kubeletplugin.testing.kubelet import Answer

EXCLUSIVE = 3  # nvmlComputeMode_t
# A change to the card, so that there are steps.
EXCLUSIVE_CONFIG: Object = {
    "opaque": {
        "driver": DRIVER,
        "parameters": {
            "apiVersion": f"{DRIVER}/v1alpha1",
            "kind": "GpuConfig",
            "computeMode": "ExclusiveProcess",
        },
    }
}


@pytest.fixture(scope="module")
def crash_file(cluster: LocalCluster) -> Path:
    return cluster.layout.root / "crash"


@pytest.fixture
def crashing(cluster: LocalCluster, crash_file: Path) -> Iterator[DriverNode]:
    """The plugin under ``e2e.crashing``."""
    node = start_driver(cluster, "--reconcile-interval=1", name="aliquot-crashing")
    node.process.stop()
    argv = list(node.process.argv)
    node.process.argv = [
        sys.executable,
        "-m",
        "e2e.crashing",
        str(crash_file),
        *argv[argv.index("node") :],
    ]
    crash_file.write_text("")
    node.process.start()
    node.wait_published(8)
    yield node
    crash_file.write_text("")
    node.process.stop()


@pytest.fixture
def bystander(crashing: DriverNode, namespace: str) -> User:
    return start_user(crashing, namespace, "bystander")


def modes(node: DriverNode) -> list[int]:
    """The compute modes of all cards that are not in the default one."""
    world = Store(node.sim).read()
    found = [world.gpu(index).compute_mode for index in range(world.count)]
    return [mode for mode in found if mode]


def dies(node: DriverNode, file: Path, plan: str, act: Callable[[], object]) -> bool:
    """Let the plugin die as planned in ``act``, start it until it stays up; False: it lived on.

    ``plan`` is what ``e2e.crashing`` reads; deaths of the later lines come with the restarts.
    """
    phase = plan.split(maxsplit=1)[0]
    file.write_text(plan)
    act()
    if f"{phase} never" in file.read_text().splitlines():
        return False

    def up_again() -> bool:
        if not node.process.running:
            node.process.launch()
        left = file.read_text().splitlines()
        return all(line.endswith(" never") for line in left) and node.is_ready()

    poll(up_again, f"the plugin to die as planned and to come back: {plan!r}")
    file.write_text("")
    return True


def answer(call: Callable[[ClaimRef], Answer | str], ref: ClaimRef) -> Answer | str | None:
    """What the plugin answers; None where it died before."""
    try:
        return call(ref)
    except grpc.aio.AioRpcError:
        return None


class Case:
    """One claim for the last free card, and what must be true of it."""

    def __init__(self, node: DriverNode, kube: Kube, namespace: str) -> None:
        self.node, self.kube, self.namespace = node, kube, namespace
        self.device = node.devices()[-1]["name"]  # the first ones go to pods

    def claim(self, name: str) -> ClaimRef:
        pool = self.node.cluster.node_name
        result = {"driver": DRIVER, "pool": pool, "device": self.device}
        return allocated_by_hand(self.kube, self.namespace, name, [result], EXCLUSIVE_CONFIG)

    def all_or_nothing(self) -> None:
        """Record, CDI file and compute mode belong together; the bystander has its own."""
        held = len(self.node.records()) - 1
        assert held in (0, 1)
        assert len(self.node.cdi_files()) - 1 == held
        assert modes(self.node) == [EXCLUSIVE] * held

    def prepared(self, ref: ClaimRef) -> None:
        found = self.node.prepare(ref)
        assert found.error == ""
        assert [device.device for device in found.devices] == [self.device]
        assert ref.uid in self.node.records()
        assert modes(self.node) == [EXCLUSIVE]

    def gone(self, ref: ClaimRef) -> None:
        assert self.node.unprepare(ref) == ""
        assert len(self.node.records()) == len(self.node.cdi_files()) == 1
        assert modes(self.node) == []
        released_by_hand(self.kube, ref)


AGAIN = {"once": "", "recovery-1": "\nrecover 1", "recovery-3": "\nrecover 3"}


@pytest.mark.parametrize("again", AGAIN.values(), ids=list(AGAIN))
def test_death_at_every_effect_of_prepare(
    crashing: DriverNode, crash_file: Path, kube: Kube, namespace: str, bystander: User, again: str
):
    case = Case(crashing, kube, namespace)
    at = 1
    while True:
        ref = case.claim(f"claim-{at}")
        died = dies(
            crashing, crash_file, f"prepare {at}{again}", partial(answer, crashing.prepare, ref)
        )
        case.all_or_nothing()
        case.prepared(ref)
        case.gone(ref)
        if not died:
            break
        at += 1
    assert at > 9  # two records of three effects each, the card, the CDI file, the answer
    still_runs(bystander)


@pytest.mark.parametrize("again", AGAIN.values(), ids=list(AGAIN))
def test_death_at_every_effect_of_unprepare(
    crashing: DriverNode, crash_file: Path, kube: Kube, namespace: str, bystander: User, again: str
):
    case = Case(crashing, kube, namespace)
    at = 1
    while True:
        ref = case.claim(f"claim-{at}")
        case.prepared(ref)
        died = dies(
            crashing,
            crash_file,
            f"unprepare {at}{again}",
            partial(answer, crashing.unprepare, ref),
        )
        case.all_or_nothing()
        case.gone(ref)
        if not died:
            break
        at += 1
    assert at > 4  # the CDI file, the card, the record and its folder, the answer
    still_runs(bystander)


def still_runs(user: User) -> None:
    """The pod lives on with its record; nothing restarted it."""
    found = user.driver.kube.get("Pod", user.name, user.namespace)
    assert found["metadata"]["uid"] == user.uid
    assert [c["restartCount"] for c in found["status"]["containerStatuses"]] == [0]
    assert len(user.driver.records()) == 1
    user.delete()
    user.driver.wait_clean()


def test_the_kubelet_asks_again_after_a_death(
    crashing: DriverNode, crash_file: Path, kube: Kube, namespace: str, bystander: User
):
    kube.apply(template("x", namespace, claim_spec(config=[EXCLUSIVE_CONFIG])))
    start = pod("user", namespace, templates={"c": "x"})

    def create() -> None:
        kube.apply(start)
        poll(lambda: not crashing.process.running, "the plugin to die in prepare")

    assert dies(crashing, crash_file, "prepare 5\nrecover 1", create)
    kube.wait_pod("user", namespace=namespace, timeout_s=180)
    assert len(crashing.records()) == len(crashing.cdi_files()) == 2

    def delete() -> None:
        kube.delete("Pod", "user", namespace, grace_s=0)
        poll(lambda: not crashing.process.running, "the plugin to die in unprepare")

    assert dies(crashing, crash_file, "unprepare 2", delete)
    kube.wait_gone("Pod", "user", namespace, timeout_s=180)
    poll(lambda: len(crashing.records()) == 1, "only the bystander's record to be left")
    assert modes(crashing) == []
    still_runs(bystander)
