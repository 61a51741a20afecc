"""What shares outlive: a new driver, a dead supervisor, a dead control daemon."""

import os
import signal
from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Kube, Object
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER
from e2e.partitions import remove_pods
from e2e.sharing import (
    SharingNode,
    asked_now,
    node_of,
    ready_condition,
    share,
    start,
    status_of,
    told,
)
from e2e.workloads import is_pending

pytestmark = pytest.mark.timeout(400)

driver = node_of("h100-80gb:1")


@pytest.fixture(autouse=True)
def nothing_is_left(driver: SharingNode, kube: Kube, namespace: str) -> Iterator[None]:
    yield
    for process in (driver.supervisor, driver.process):
        if not process.running:
            process.start()
    remove_pods(kube)
    driver.wait_nothing_left()


@pytest.fixture
def users(kube: Kube, namespace: str, driver: SharingNode) -> list[str]:
    """Two pods with a share each."""
    for name in ("a", "b"):
        start(kube, namespace, name, share("20Gi", "25"), ask=True)
    for name in ("a", "b"):
        kube.wait_pod(name, namespace=namespace, timeout_s=120)
    return ["a", "b"]


def still_run(kube: Kube, namespace: str, names: list[str]) -> None:
    for name in names:
        found = kube.get("Pod", name, namespace)
        assert found["status"]["phase"] == "Running"
        assert [c["restartCount"] for c in found["status"]["containerStatuses"]] == [0]


def is_ready(kube: Kube, namespace: str, name: str) -> Object:
    return ready_condition(status_of(kube, namespace, name))


def test_control_daemons_outlive_an_upgrade_of_the_driver(
    kube: Kube, namespace: str, driver: SharingNode, users: list[str]
):
    before = driver.pids()
    for end in (driver.process.stop, driver.process.kill):
        end()
        assert driver.pids() == before
        driver.process.start()
        poll(lambda: not driver.taints(), "no taint")
        assert driver.pids() == before
    assert [asked_now(kube, namespace, name) for name in users] == ["100.0", "100.0"]
    still_run(kube, namespace, users)
    start(kube, namespace, "late", share("10Gi"), ask=True)
    kube.wait_pod("late", namespace=namespace, timeout_s=120)
    assert told(kube, namespace, "late")["ASKED_PERCENT"] == "100.0"
    assert driver.pids() == before


def test_a_killed_supervisor_recovers_without_touching_daemons(
    kube: Kube, namespace: str, driver: SharingNode, users: list[str]
):
    before = driver.daemon()
    driver.supervisor.kill()
    poll(
        lambda: driver.taints() == {(f"{DRIVER}/mps", "supervisorAway")},
        "shares to be tainted",
        detail=lambda: str(driver.taints()),
    )
    assert [asked_now(kube, namespace, name) for name in users] == ["100.0", "100.0"]
    start(kube, namespace, "late", share("10Gi"))
    kube.wait("Pod", "late", is_pending, namespace=namespace)
    driver.supervisor.start()
    after = driver.daemon()
    assert (after.pid, after.started, after.restarts) == (before.pid, before.started, 0)
    kube.wait_pod("late", namespace=namespace, timeout_s=180)
    assert driver.taints() == set()
    still_run(kube, namespace, users)


def test_pods_can_end_while_the_supervisor_is_away(
    kube: Kube, namespace: str, driver: SharingNode, users: list[str]
):
    """The kubelet tries again until the supervisor is back: nothing is leaked meanwhile."""
    driver.supervisor.kill()
    kube.delete("Pod", "a", namespace, grace_s=1)
    kube.delete("Pod", "b", namespace, grace_s=1)
    poll(lambda: len(driver.records()) <= 1, "one share to be given back without its supervisor")
    driver.supervisor.start()
    for name in users:
        kube.wait_gone("Pod", name, namespace, timeout_s=180)
    driver.wait_nothing_left()


def test_a_dead_control_daemon_is_told_within_ten_seconds_and_is_back(
    kube: Kube, namespace: str, driver: SharingNode, users: list[str]
):
    before = driver.daemon()
    assert is_ready(kube, namespace, "a")["status"] == "True"
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    seen: dict[str, object] = {}

    def told_of() -> bool:
        """Each at some time: the supervisor shows a failure for 5 s after the daemon is back,
        which is at once, so that to be seen at all is to be seen within 10 s."""
        for name in users:
            condition = is_ready(kube, namespace, name)
            if condition["status"] == "False":
                seen[name] = condition["reason"]
        if driver.taints() == {(f"{DRIVER}/mps", "daemonDown")}:
            seen["taint"] = True
        return len(seen) == 3

    poll(told_of, "conditions and taint", interval_s=0.02, detail=lambda: str(seen))
    assert {seen[name] for name in users} == {"MPSDaemonDown"}

    def back() -> bool:
        up = [is_ready(kube, namespace, name)["status"] == "True" for name in users]
        return all(up) and not driver.taints()

    poll(back, "conditions and taint to be as before", timeout_s=60)
    after = driver.daemon()
    assert after.running
    assert after.pid != before.pid
    assert after.restarts == 1
    assert after.spec == before.spec
    assert after.pipe_directory == before.pipe_directory
    # The same mount of the same folder reaches the new daemon.
    assert [asked_now(kube, namespace, name) for name in users] == ["100.0", "100.0"]
    still_run(kube, namespace, users)


def test_a_supervisor_that_was_away_when_its_daemon_died_brings_it_back(
    kube: Kube, namespace: str, driver: SharingNode, users: list[str]
):
    before = driver.daemon()
    driver.supervisor.kill()
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    driver.supervisor.start()
    poll(lambda: driver.daemon().running, "the daemon to be back")
    assert driver.daemon().pid != before.pid
    assert driver.daemon().spec == before.spec
    poll(lambda: not driver.taints(), "no taint")
    assert [asked_now(kube, namespace, name) for name in users] == ["100.0", "100.0"]
    still_run(kube, namespace, users)
