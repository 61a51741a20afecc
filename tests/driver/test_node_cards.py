"""What is known of the cards, what is published of them, and what a restart keeps."""

from dataclasses import replace

import pytest

from api.policy import NodePolicy
from driver.common import mounts_of
from driver.errors import HardwareError
from driver.model.health import CardHealth
from driver.model.ids import GpuUuid
from driver.model.readings import CardReading, XidEvent
from driver.sim import control
from driver.state.files import decode, encode
from tests.driver.machine import NODE, TAINTS, claim, excluded, ref, taint_keys

NO_TAINTS = frozenset[str]()
UNREADABLE = 999
BAD_XID = 79


def xid(machine, index, number=BAD_XID):
    return XidEvent(gpu=machine.uuids[index], xid=number)


def rewrite(machine, change):
    """Change what is remembered on disk, as another version of the driver would have."""
    version, values = decode(machine.known.read_bytes(), machine.known)
    change(values)
    machine.known.write_bytes(encode(version, values))


def test_every_card_is_published_without_taints_while_all_is_well(machine, parts):
    assert taint_keys(parts.pool()) == {machine.device(0): [], machine.device(1): []}
    assert parts.pool().name == NODE
    assert [one.healthy for one in parts.cards.device_health()] == [True, True]


@pytest.mark.parametrize("held", [False, True])
def test_a_card_that_is_gone_is_forgotten_unless_a_claim_holds_it(machine, parts, held):
    if held:
        parts.journal.put(parts.planned(claim(1, machine.device(1))))
    machine.pull_out(1)
    parts.refresh()
    known = machine.uuids if held else machine.uuids[:1]
    assert list(parts.cards.gpus) == known
    assert list(parts.cards.health) == known


async def test_a_card_that_is_gone_while_held_is_lost(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(1)))
    await parts.watch.refresh()
    machine.pull_out(1)
    await parts.watch.refresh()
    assert parts.cards.health[machine.uuids[1]].lost
    assert taint_keys(parts.pool())[machine.device(1)] == ["lost"]
    await parts.driver.unprepare(ref())
    await parts.watch.refresh()
    assert machine.uuids[1] not in parts.cards.gpus


def test_a_card_that_cannot_be_read_keeps_its_name_and_place(machine, parts):
    machine.refuse("nvmlDeviceGetUUID", UNREADABLE, count=None, gpu=0)
    parts.refresh()
    assert list(parts.cards.gpus) == machine.uuids
    assert list(parts.cards.devices)[:2] == [machine.device(1), machine.device(0)]
    assert parts.cards.inventory.unreadable[0].index == 0


async def test_a_lost_card_is_still_known_after_a_restart(machine, parts):
    await parts.watch.refresh()
    control.lose(machine.root, 0)
    await parts.watch.refresh()
    later = machine.start(refresh=False)
    assert later.cards.health[machine.uuids[0]].lost
    await later.watch.refresh()
    assert taint_keys(later.pool()) == {machine.device(0): ["lost"], machine.device(1): []}
    control.restore(machine.root, 0)
    await later.watch.refresh()
    assert taint_keys(later.pool())[machine.device(0)] == []


async def test_device_numbers_are_not_remembered(machine, parts):
    await parts.watch.refresh()
    _, values = decode(machine.known.read_bytes(), machine.known)
    assert [gpu["minor"] for gpu in values["gpus"]] == [-1, -1]
    assert values["driverVersion"] == "580.105.08"


def test_an_xid_outlives_a_restart_and_ends_with_the_boot(machine, parts):
    (change,) = parts.cards.apply([xid(machine, 0)])
    assert change.text == f"XID {BAD_XID}"
    parts.cards.save()
    later = machine.start()
    assert later.cards.health[machine.uuids[0]].xid == BAD_XID
    assert taint_keys(later.pool())[machine.device(0)] == ["xid"]
    control.reboot(machine.root)
    assert machine.start().cards.health[machine.uuids[0]] == CardHealth()


def test_events_of_cards_that_nobody_knows_change_nothing(machine, parts):
    assert parts.cards.apply([XidEvent(gpu=None, xid=BAD_XID)]) == ()
    assert parts.cards.apply([CardReading(gpu=GpuUuid("GPU-other"), lost=True)]) == ()


def test_a_remembered_card_of_another_version_is_forgotten(machine, parts, caplog):
    parts.cards.save()

    def add_fields(values):
        values["gpus"][0]["wings"] = 2
        values["gpus"][1]["health"]["xid"] = "seventy-nine"

    rewrite(machine, add_fields)
    later = machine.start(refresh=False)
    assert later.cards.gpus == {}
    assert "a remembered card is forgotten" in caplog.text
    later.refresh()
    assert list(later.cards.gpus) == machine.uuids


def test_a_disk_that_refuses_what_is_known_does_not_stop_anything(machine, parts, caplog):
    machine.known.parent.write_text("not a folder")
    parts.cards.save()
    assert "health of the cards is not kept over a restart" in caplog.text


# The policy ------------------------------------------------------------------------------


def test_a_card_that_the_policy_excludes_is_not_published(machine):
    parts = machine.start(excluded(machine.uuids[0]))
    assert list(taint_keys(parts.pool())) == [machine.device(1)]


def test_a_held_card_that_the_policy_excludes_stays_and_takes_no_new_claims(machine, parts):
    parts.cards.policy = excluded(machine.uuids[0])
    pool = parts.pool(machine.device(0))
    assert taint_keys(pool) == {machine.device(0): ["policy"], machine.device(1): []}
    (taint,) = next(device["taints"] for device in pool.slices[0].devices if device.get("taints"))
    assert taint["effect"] == "NoSchedule"


async def test_a_claim_on_an_excluded_card_can_still_be_prepared_and_repeated(machine, parts):
    raw = claim(1, machine.device(0))
    first = await parts.driver.prepare(raw)
    parts.cards.policy = excluded(machine.uuids[0])
    assert await parts.driver.prepare(raw) == first


# Damaged records -------------------------------------------------------------------------


def test_cards_that_a_damaged_record_may_hold_are_blocked(machine, parts):
    parts.cards.blocked = True
    assert taint_keys(parts.pool(machine.device(0))) == {
        machine.device(0): [],
        machine.device(1): ["record"],
    }


def test_a_blocked_card_keeps_its_worst_taints(machine, parts):
    health = CardHealth(lost=True, recovery_action=2, xid=BAD_XID, ecc=True)
    parts.cards._health = dict.fromkeys(machine.uuids, health)
    parts.cards.blocked = True
    assert taint_keys(parts.pool())[machine.device(0)] == ["lost", "recovery", "xid", "record"]


# A cluster without the feature gate ------------------------------------------------------


def test_without_taints_faulty_cards_are_withdrawn_and_come_back(machine, parts):
    parts.cards.apply([xid(machine, 0)])
    assert list(taint_keys(parts.pool(features=NO_TAINTS))) == [machine.device(1)]
    for _ in range(2):  # calm readings
        parts.cards.apply(
            [CardReading(gpu=machine.uuids[0], lost=False, recovery_action=0, regular=True)]
        )
    assert sorted(taint_keys(parts.pool(features=NO_TAINTS))) == sorted(
        [machine.device(0), machine.device(1)]
    )


def test_without_taints_a_faulty_card_that_is_held_stays(machine, parts):
    parts.cards.apply([xid(machine, 0)])
    assert taint_keys(parts.pool(machine.device(0), features=NO_TAINTS)) == {
        machine.device(0): [],
        machine.device(1): [],
    }


def test_a_taint_that_only_informs_withdraws_nothing(machine):
    parts = machine.start(replace(NodePolicy(), taint_effect="None"))
    parts.cards.apply([xid(machine, 0)])
    assert sorted(taint_keys(parts.pool(features=NO_TAINTS))) == sorted(
        [machine.device(0), machine.device(1)]
    )
    assert taint_keys(parts.pool(features=TAINTS))[machine.device(0)] == ["xid"]


# NVML as a whole -------------------------------------------------------------------------


def test_without_nvml_nothing_is_known_the_first_time(machine):
    parts = machine.start(refresh=False)
    control.set_library(machine.root, "missing")
    with pytest.raises(HardwareError):
        parts.refresh()
    assert parts.cards.all_lost("no NVML") == ()
    assert taint_keys(parts.pool()) == {}


def test_without_nvml_every_known_card_is_lost(machine, parts):
    parts.cards.save()
    later = machine.start(refresh=False)
    changes = later.cards.all_lost("no NVML")
    assert [change.gpu for change in changes] == machine.uuids
    assert set(map(tuple, taint_keys(later.pool()).values())) == {("lost",)}
    assert later.cards.inventory.driver_version == "580.105.08"  # as last seen
    assert later.cards.inventory.cuda_driver_version == (13, 0)


def test_a_link_to_a_file_that_is_not_mounted_is_left_out(machine, parts):
    files = replace(
        parts.hardware.files(), symlinks=(("libnvoptix.so.580.105.08", "/lib/libnvoptix.so.1"),)
    )
    assert all("nvoptix" not in mount.container_path for mount in mounts_of(files))
    assert len(mounts_of(files)) == len(files.mounts)


def test_a_driver_that_does_not_tell_its_version_is_named(machine, parts):
    machine.refuse("nvmlSystemGetDriverVersion", UNREADABLE)
    with pytest.raises(HardwareError, match="nvmlSystemGetDriverVersion"):
        parts.cards.view(machine.uuids)


def test_a_view_has_the_nodes_of_the_wanted_cards_only(machine, parts):
    view = parts.cards.view([machine.uuids[1]])
    assert list(view.nodes) == [machine.uuids[1]]
    assert [node.path for node in view.nodes[machine.uuids[1]]] == ["/dev/nvidia1"]
    assert "/dev/nvidiactl" in [node["path"] for node in view.common["deviceNodes"]]
