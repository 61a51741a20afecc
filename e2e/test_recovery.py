"""What dies comes back, what was prepared stays, what is over leaves nothing.

Everything real but the hardware: the kubelet is killed by signal, the API server is stopped, the
plugin gets SIGKILL, and a "reboot" is a new boot id with an empty CDI folder.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver.sim import control
from driver.sim.store import Store
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, command, start_driver
from e2e.workloads import claim, claim_spec, exactly, is_pending, pod, seen, template, uuids

OUTAGE_S = 45.0


@pytest.fixture
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    """A plugin of the test's own that looks often, so that tests need not wait for a minute."""
    policy = cluster.layout.root / "policy.yaml"
    policy.write_text("orphanGraceSeconds: 2\n")
    node = start_driver(
        cluster,
        "--health-interval=0.2",
        "--refresh-interval=0.5",
        "--reconcile-interval=1",
        f"--config={policy}",
    )
    control.clear_faults(node.sim)
    node.wait_published(8)
    yield node
    if not cluster.apiserver.running:
        cluster.apiserver.start()
    if not node.process.running:
        node.process.start()
    for item in cluster.kube.request("GET", "/api/v1/pods")["items"]:
        meta = item["metadata"]
        if meta["namespace"].startswith("test-"):
            cluster.kube.delete("Pod", meta["name"], meta["namespace"], grace_s=0)
    node.wait_clean()
    node.process.stop()


@pytest.fixture
def user(driver: DriverNode, namespace: str) -> "User":
    return start_user(driver, namespace)


@dataclass
class User:
    """A running pod with a card of its own."""

    driver: DriverNode
    namespace: str
    name: str
    uid: str
    restarts: int = 0

    def same(self) -> None:
        """It still runs, was not restarted, and its record and CDI file are there."""
        found = self.driver.kube.get("Pod", self.name, self.namespace)
        assert found["metadata"]["uid"] == self.uid
        assert found["status"]["phase"] == "Running"
        assert [c["restartCount"] for c in found["status"]["containerStatuses"]] == [0]
        assert len(self.driver.records()) == len(self.driver.cdi_files()) == 1

    def delete(self) -> None:
        self.driver.kube.delete("Pod", self.name, self.namespace, grace_s=0)


def start_user(driver: DriverNode, namespace: str, name: str = "user") -> User:
    kube = driver.kube
    kube.apply(
        [template(name, namespace, claim_spec()), pod(name, namespace, templates={"c": name})]
    )
    found = kube.wait_pod(name, namespace=namespace)
    return User(driver, namespace, name, found["metadata"]["uid"])


def fingerprint(driver: DriverNode) -> list[tuple[str, str]]:
    """Name and resource version of each ResourceSlice: equal means that nobody wrote."""
    return [(s["metadata"]["name"], s["metadata"]["resourceVersion"]) for s in driver.slices()]


# The kubelet -------------------------------------------------------------------------------


def test_a_restart_of_the_kubelet_brings_the_slices_back(
    driver: DriverNode, cluster: LocalCluster, user: User
):
    before = {s["metadata"]["uid"] for s in driver.slices()}

    cluster.restart_kubelet()

    poll(
        lambda: (
            driver.devices() and before.isdisjoint(s["metadata"]["uid"] for s in driver.slices())
        ),
        "ResourceSlices to be deleted by the kubelet and made again",
    )
    poll(driver.is_ready, "the plugin to be registered again")
    user.same()
    user.delete()
    driver.wait_clean()


def test_a_killed_kubelet_finds_plugin_and_claims_again(
    driver: DriverNode, cluster: LocalCluster, user: User, namespace: str
):
    cluster.kill_kubelet()

    user.same()
    second = start_user(driver, namespace, "second")  # the kubelet prepares again
    assert len(driver.records()) == 2
    second.delete()
    user.delete()
    driver.wait_clean()


def test_a_wiped_registry_is_repaired(driver: DriverNode, user: User, namespace: str):
    for path in driver.registry_dir.iterdir():
        path.unlink()

    poll(lambda: list(driver.registry_dir.glob(f"{DRIVER}*.sock")), "the socket to be back")
    poll(driver.is_ready, "the plugin to be registered again")
    user.same()
    start_user(driver, namespace, "second")


def test_wiped_plugin_sockets_are_repaired(driver: DriverNode, user: User, namespace: str):
    (driver.plugin_dir / "dra.sock").unlink()

    poll((driver.plugin_dir / "dra.sock").exists, "the socket to be back")
    user.same()
    user.delete()
    driver.wait_clean()


# The plugin --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_of_the_plugin_rewrites_nothing(driver: DriverNode, user: User, how: str):
    before = fingerprint(driver)
    files = {path: path.stat().st_mtime_ns for path in driver.cdi_files()}

    getattr(driver.process, how)()
    driver.process.start()

    user.same()
    assert fingerprint(driver) == before
    assert {path: path.stat().st_mtime_ns for path in driver.cdi_files()} == files


def test_pods_deleted_while_the_plugin_is_down_go_when_it_is_back(
    driver: DriverNode, user: User, kube: Kube
):
    driver.process.kill()
    kube.delete("Pod", user.name, user.namespace, grace_s=1)

    driver.process.start()

    kube.wait_gone("Pod", user.name, user.namespace, timeout_s=120)
    driver.wait_clean()


def test_a_second_instance_stands_by_and_takes_over(
    driver: DriverNode, cluster: LocalCluster, user: User, namespace: str
):
    options = ["--simulate=h100-80gb:8", "--http-address=127.0.0.1:8081"]
    argv = command(cluster, driver.account, driver.sim, options)
    second = cluster.spawn("aliquot-second", argv)
    inode = (driver.plugin_dir / "dra.sock").stat().st_ino
    second.launch()
    try:
        poll(lambda: ready_on(cluster, 8081), "the second instance to be Ready")
        assert "standing by" in ready_on(cluster, 8081)["reasons"][0]
        assert (driver.plugin_dir / "dra.sock").stat().st_ino == inode
        assert second.running

        driver.process.kill()

        poll(lambda: serving_on(cluster, 8081), "the second instance to serve")
        user.same()
        start_user(driver, namespace, "other")
    finally:
        second.stop()


def ready_on(cluster: LocalCluster, port: int) -> Object:
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/readyz').read().decode())"
    done = cluster.exec_in_netns(["python3", "-c", code], check=False)
    answer: Object = json.loads(done.stdout) if done.stdout.strip() else {}
    return answer


def serving_on(cluster: LocalCluster, port: int) -> bool:
    answer = ready_on(cluster, port)
    return bool(answer.get("ok")) and not answer["reasons"]


# The node ----------------------------------------------------------------------------------


def test_after_a_reboot_claims_are_made_good_before_serving(
    driver: DriverNode, user: User, namespace: str
):
    driver.process.kill()
    driver.reboot()

    driver.process.start()

    user.same()
    assert driver.events("ClaimRecovered")


def test_a_cdi_file_that_is_gone_is_written_again(driver: DriverNode, user: User):
    (path,) = driver.cdi_files()
    content = path.read_bytes()
    path.unlink()

    poll(path.exists, "the CDI file to be back")
    assert path.read_bytes() == content
    poll(lambda: driver.events("CDIFileRestored"), "an Event")


# The API server ----------------------------------------------------------------------------


def test_an_outage_of_the_api_server_touches_nothing(
    driver: DriverNode, cluster: LocalCluster, user: User, namespace: str
):
    record = (driver.plugin_dir / "claims" / f"{driver.records()[0]}.json").read_bytes()
    with cluster.api_down():
        time.sleep(OUTAGE_S)
        assert driver.process.running
        (uid,) = driver.records()
        assert (driver.plugin_dir / "claims" / f"{uid}.json").read_bytes() == record

    poll(lambda: len(driver.devices()) == 8, "the ResourceSlices to be there")
    user.same()
    start_user(driver, namespace, "after")


def test_the_plugin_starts_while_the_api_server_is_away(
    driver: DriverNode, cluster: LocalCluster, user: User
):
    driver.process.kill()
    with cluster.api_down():
        driver.process.launch()
        poll((driver.plugin_dir / "dra.sock").exists, "the socket to be served")
    driver.process.wait_ready()
    user.same()


# Records -----------------------------------------------------------------------------------

DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "edited": lambda data: data.replace(b"gpu-", b"gpu_"),
    "not json": lambda data: b"\xff\xfe\x00",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_record_is_rebuilt_from_its_claim(driver: DriverNode, user: User, damage):
    (uid,) = driver.records()
    path = driver.plugin_dir / "claims" / f"{uid}.json"
    driver.process.stop()
    path.write_bytes(damage(path.read_bytes()))

    driver.process.start()

    poll(lambda: driver.records() == [uid], "the record to be rebuilt")
    user.same()
    poll(lambda: driver.events("ClaimRecordRebuilt"), "an Event")
    poll(lambda: not any(d.get("taints") for d in driver.devices()), "taints to be gone")
    user.delete()
    driver.wait_clean()


def test_a_claim_that_vanished_while_the_plugin_was_down_is_released(
    driver: DriverNode, cluster: LocalCluster, user: User, kube: Kube
):
    """The kubelet has lost its checkpoint and the claim is gone: nobody will ever unprepare it."""
    driver.process.stop()
    (record,) = driver.records()
    path = driver.plugin_dir / "claims" / f"{record}.json"
    kept = path.read_bytes()
    driver.process.start()
    user.delete()
    driver.wait_clean()
    driver.process.stop()
    path.write_bytes(kept)

    driver.process.start()

    driver.wait_clean()
    poll(lambda: driver.events("OrphanedClaimReleased"), "an Event")


def test_an_orphan_is_kept_while_a_process_runs_on_its_card(driver: DriverNode, user: User):
    driver.process.stop()
    (record,) = driver.records()
    path = driver.plugin_dir / "claims" / f"{record}.json"
    kept = path.read_bytes()
    gpu = json.loads(kept.split(b"\n", 1)[1])["allocations"][0]["gpu"]
    driver.process.start()
    user.delete()
    driver.wait_clean()
    driver.process.stop()
    path.write_bytes(kept)
    index = index_of(driver, gpu)
    control.set_process(driver.sim, index, 4242, 1 << 30)

    driver.process.start()
    poll(lambda: "processes still run" in driver.process.tail(200), "the orphan to be looked at")
    assert driver.records() == [record]

    control.clear_processes(driver.sim, index)
    driver.wait_clean()


def index_of(driver: DriverNode, uuid: str) -> int:
    """The simulator's index of a card: its cards come in PCI order."""
    by_pci = sorted(
        (d["attributes"]["resource.kubernetes.io/pciBusID"]["string"], d["attributes"]["uuid"])
        for d in driver.devices()
    )
    return [each[1]["string"] for each in by_pci].index(uuid)


# Cards -------------------------------------------------------------------------------------


def tainted(driver: DriverNode) -> dict[str, list[str]]:
    return {
        d["name"]: [t["key"] for t in d["taints"]] for d in driver.devices() if d.get("taints")
    }


def test_a_lost_card_is_tainted_and_comes_back(
    driver: DriverNode, user: User, kube: Kube, namespace: str
):
    control.lose(driver.sim, 0)
    poll(lambda: list(tainted(driver).values()) == [[f"{DRIVER}/lost"]], "one card to be tainted")
    assert len(driver.devices()) == 8

    kube.apply(template("all", namespace, claim_spec(exactly(count=7))))
    kube.apply(pod("all", namespace, templates={"c": "all"}))
    kube.wait("Pod", "all", is_pending, namespace=namespace)

    control.restore(driver.sim, 0)
    poll(lambda: not tainted(driver), "the taint to go")
    kube.wait_pod("all", namespace=namespace)
    user.delete()


def test_an_xid_taints_until_the_recovery_is_over(driver: DriverNode):
    control.set_recovery_action(driver.sim, 3, 1)
    control.xid(driver.sim, 3, 79)
    poll(
        lambda: (
            {key for keys in tainted(driver).values() for key in keys}
            >= {f"{DRIVER}/xid", f"{DRIVER}/recovery"}
        ),
        "the card to be tainted",
    )
    assert len(tainted(driver)) == 1

    driver.process.restart()
    assert len(tainted(driver)) == 1  # a restart does not forget

    control.set_recovery_action(driver.sim, 3, 0)
    poll(lambda: not tainted(driver), "the taints to go")


def test_an_application_error_taints_nothing(driver: DriverNode):
    control.xid(driver.sim, 2, 31)
    control.xid(driver.sim, 1, 79)

    poll(lambda: tainted(driver), "the other card to be tainted")
    assert len(tainted(driver)) == 1
    poll(lambda: not tainted(driver), "the taint to go: no recovery is asked for")


def test_a_card_lost_between_publish_and_prepare_is_named(
    driver: DriverNode, kube: Kube, namespace: str
):
    kube.apply(claim("c", namespace, claim_spec()))
    control.inject(driver.sim, "nvmlDeviceGetMinorNumber", 15, count=None)
    kube.apply(pod("p", namespace, claims={"c": "c"}))

    def told() -> bool:
        return any(
            e["reason"] == "FailedPrepareDynamicResources" and "GPU-" in e["message"]
            for e in kube.events("p", namespace)
        )

    poll(told, "the pod's event to name the card")
    assert driver.records() == []
    assert driver.cdi_files() == []

    control.clear_faults(driver.sim)
    kube.wait_pod("p", namespace=namespace, timeout_s=120)


# Every step --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crash_file(cluster: LocalCluster) -> Path:
    return cluster.layout.root / "crash"


@pytest.fixture
def crashing(cluster: LocalCluster, crash_file: Path) -> Iterator[DriverNode]:
    """The plugin under ``e2e.crashing``."""
    node = start_driver(cluster, "--reconcile-interval=1", name="aliquot-crashing")
    node.process.stop()
    argv = list(node.process.argv)
    node.process.argv = [sys.executable, "-m", "e2e.crashing", str(crash_file), *argv[1:]]
    node.process.start()
    node.wait_published(8)
    yield node
    crash_file.write_text("")
    node.process.stop()


def exclusive() -> Object:
    """A claim with a change to the card, so that there are steps."""
    parameters = {
        "apiVersion": f"{DRIVER}/v1alpha1",
        "kind": "GpuConfig",
        "computeMode": "ExclusiveProcess",
    }
    return claim_spec(config=[{"opaque": {"driver": DRIVER, "parameters": parameters}}])


def die_at(node: DriverNode, file: Path, plan: str, act) -> bool:
    """Let the plugin die as planned while ``act`` is under way, and start it until it stays up.

    False: the first phase ended without having that many effects.
    """
    phase = plan.split()[0]
    file.write_text(plan)
    act()

    def settled() -> bool:
        if not node.process.running:
            node.process.launch()
        left = file.read_text().splitlines()
        return f"{phase} never" in left or all(line.endswith(" never") for line in left)

    poll(settled, f"the plugin to die as planned: {plan!r}", timeout_s=120)
    died = f"{phase} never" not in file.read_text().splitlines()
    file.write_text("")
    poll(node.is_ready, "the plugin to be back")
    return died


def modes(node: DriverNode) -> set[int]:
    return {gpu.compute_mode for gpu in Store(node.sim).read().gpus}


@pytest.mark.parametrize("again", ["", "\nrecover 1", "\nrecover 2"], ids=["once", "r1", "r2"])
def test_death_at_every_step_of_prepare_and_unprepare(
    crashing: DriverNode, crash_file: Path, kube: Kube, namespace: str, again: str
):
    bystander = start_user(crashing, namespace, "bystander")
    kube.apply(template("x", namespace, exclusive()))
    deaths = {"prepare": 0, "unprepare": 0}
    for phase in deaths:
        for at in range(1, 40):
            name = f"{phase}-{at}"
            create = pod(name, namespace, templates={"c": "x"})
            if phase == "prepare":
                died = die_at(
                    crashing, crash_file, f"prepare {at}{again}", lambda p=create: kube.apply(p)
                )
                kube.wait_pod(name, namespace=namespace, timeout_s=120)
                assert len(crashing.records()) == len(crashing.cdi_files()) == 2
                kube.delete("Pod", name, namespace, grace_s=0)
            else:
                kube.apply(create)
                kube.wait_pod(name, namespace=namespace)
                remove = lambda n=name: kube.delete("Pod", n, namespace, grace_s=0)  # noqa: E731
                died = die_at(crashing, crash_file, f"unprepare {at}{again}", remove)
            kube.wait_gone("Pod", name, namespace, timeout_s=120)
            poll(lambda: len(crashing.records()) == 1, "only the bystander's record to be left")
            poll(lambda: len(crashing.cdi_files()) == 1, "only its CDI file to be left")
            assert modes(crashing) == {0}
            if not died:
                break
            deaths[phase] += 1
    kube.get("Pod", bystander.name, namespace)
    assert deaths["prepare"] >= 9
    assert deaths["unprepare"] >= 4


def test_what_a_container_sees_is_the_same_after_all_that(
    driver: DriverNode, user: User, kube: Kube
):
    first = seen(kube, user.name, user.namespace)
    driver.process.kill()
    driver.process.start()
    assert uuids(seen(kube, user.name, user.namespace)[0]) == uuids(first[0])
