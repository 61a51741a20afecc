"""The kubelet, the plugin, the node and the API server go away and come back; pods stay.

Everything is real but the hardware: signals to real processes, a stopped API server, and for a
reboot a new boot id with an empty CDI folder.
"""

import json
import time

import pytest

from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, command
from e2e.users import User, start_user
from e2e.workloads import seen, uuids

OUTAGE_S = 45.0


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


def test_what_a_container_sees_is_the_same_after_all_that(
    driver: DriverNode, user: User, kube: Kube
):
    first = seen(kube, user.name, user.namespace)
    driver.process.kill()
    driver.process.start()
    assert uuids(seen(kube, user.name, user.namespace)[0]) == uuids(first[0])
