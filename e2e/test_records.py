"""Records that cannot be trusted, and records that nobody will ever ask to undo."""

import json
from collections.abc import Callable

import pytest

from driver.sim import control
from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DriverNode
from e2e.users import User

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
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
