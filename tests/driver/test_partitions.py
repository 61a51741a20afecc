"""Partitions through the driver's own parts: real journal, CDI folder and pynvml."""

import pytest

from api.policy import NodePolicy, parse_policy
from driver.apply.executor import Outcome
from driver.errors import DeviceBusyError, DeviceConflictError, HardwareError, UnknownDeviceError
from driver.model.claims import ClaimState
from driver.model.mig import Placement
from driver.sim import control
from driver.sim.store import Store
from e2e.partitions import by_hand, instances, not_by_hand
from tests.driver.machine import claim, ref, taint_keys

FEATURES = frozenset({"taints", "counters"})
IN_USE, UNKNOWN = 19, 999


def policy(**more: str) -> NodePolicy:
    rule = {"select": "{all: true}", "modes": "[gpu, mig]", **more}
    text = ", ".join(f"{key}: {value}" for key, value in rule.items())
    return parse_policy(f"gpus: [{{{text}}}]", "policy.yaml")


BOTH, ADOPTING = policy(), policy(adoptExisting="true")


@pytest.fixture
def parts(machine):
    return machine.start(BOTH)


def part(machine, profile, start, card=0):
    return f"{machine.device(card)}-mig-{profile.replace('.', '-')}-{start}"


def in_mig_mode(machine, card=0):
    return Store(machine.root).read().gpu(card).mig_current


async def test_a_partition_is_made_and_destroyed(machine, parts):
    (answer,) = await parts.driver.prepare(claim(1, part(machine, "3g.40gb", 4)))
    assert answer.device == part(machine, "3g.40gb", 4)
    assert instances(machine.root) == [(0, 4, 4)]
    assert in_mig_mode(machine)
    (device,) = machine.spec()["devices"]
    paths = [node["path"] for node in device["containerEdits"]["deviceNodes"]]
    assert paths[0] == "/dev/nvidia0"
    assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in paths[1:])
    await parts.driver.unprepare(ref())
    assert instances(machine.root) == []
    assert parts.record() is None
    assert in_mig_mode(machine)  # a state of the card, left as it is


async def test_a_repeat_answers_the_same_and_writes_nothing(machine, parts):
    raw = claim(1, part(machine, "1g.10gb", 6))
    first = await parts.driver.prepare(raw)
    before = machine.files()
    assert await parts.driver.prepare(raw) == first
    assert machine.files() == before


async def test_a_whole_card_turns_mig_mode_off_and_waits_for_its_partitions(machine, parts):
    await parts.driver.prepare(claim(1, part(machine, "1g.10gb", 6)))
    with pytest.raises(DeviceConflictError, match=r"1g.10gb at memory slice 6"):
        await parts.driver.prepare(claim(2, machine.device(0)))
    await parts.driver.unprepare(ref())
    await parts.driver.prepare(claim(2, machine.device(0)))
    assert not in_mig_mode(machine)


async def test_a_card_in_mig_mode_with_a_process_on_it_is_refused_with_the_process(machine, parts):
    control.set_mig_mode(machine.root, 0, on=True)
    control.set_process(machine.root, 0, 4711, None)
    with pytest.raises(DeviceBusyError, match="in use by process 4711"):
        await parts.driver.prepare(claim(1, machine.device(0)))
    assert parts.record() is None


async def test_mode_off_and_no_toggling_allowed_is_refused_with_the_command(machine):
    parts = machine.start(policy(migModeToggle="never"))
    with pytest.raises(HardwareError) as error:
        await parts.driver.prepare(claim(1, part(machine, "1g.10gb", 6)))
    assert f"nvidia-smi -i {machine.uuids[0]} -mig 1" in str(error.value)
    assert "migModeToggle" in str(error.value)
    assert parts.record() is None


async def test_a_place_that_somebody_took_is_refused_and_left_alone(machine, parts):
    by_hand(machine.root, 0, "2g.20gb", 4)
    for device in (part(machine, "3g.40gb", 4), part(machine, "2g.20gb", 4), machine.device(0)):
        with pytest.raises(DeviceConflictError, match=r"GPU instance .* at memory slices 4 to 5"):
            await parts.driver.prepare(claim(1, device))
    assert instances(machine.root) == [(0, 4, 2)]
    await parts.driver.prepare(claim(1, part(machine, "1g.10gb", 6)))


async def test_a_busy_partition_keeps_its_claim_prepared_until_it_is_free(machine, parts):
    await parts.driver.prepare(claim(1, part(machine, "1g.10gb", 6)))
    machine.refuse("nvmlComputeInstanceDestroy", IN_USE, count=None)
    with pytest.raises(DeviceBusyError, match=r"partition 1g.10gb at memory slice 6"):
        await parts.driver.unprepare(ref())
    assert parts.record().state is ClaimState.STARTED
    assert instances(machine.root) == [(0, 6, 1)]
    control.clear_faults(machine.root)
    await parts.driver.unprepare(ref())
    assert (instances(machine.root), parts.record()) == ([], None)


async def test_quota_of_compute_instances_that_is_used_up_leaves_nothing(machine, parts):
    machine.refuse("nvmlGpuInstanceCreateComputeInstance", 23)
    with pytest.raises(HardwareError, match="nvmlGpuInstanceCreateComputeInstance"):
        await parts.driver.prepare(claim(1, part(machine, "1g.10gb", 6)))
    assert (instances(machine.root), parts.record()) == ([], None)


@pytest.mark.parametrize("uuids", ["stable", "fresh"])
async def test_a_reboot_makes_partitions_again(machine, parts, uuids):
    control.set_mig_uuids(machine.root, uuids)
    await parts.driver.prepare(claim(1, part(machine, "3g.40gb", 0), part(machine, "1g.10gb", 6)))
    machine.stop()
    control.reboot(machine.root, permute_minors=True)
    assert not in_mig_mode(machine)
    again = machine.start(BOTH)
    (report,) = again.driver.recover()
    assert report.outcome is Outcome.REDONE
    assert instances(machine.root) == [(0, 0, 4), (0, 6, 1)]
    devices = machine.spec()["devices"]
    assert devices[0]["containerEdits"]["deviceNodes"][0]["path"] == "/dev/nvidia1"


async def test_a_partition_destroyed_under_a_claim_is_made_again_at_the_next_prepare(
    machine, parts
):
    raw = claim(1, part(machine, "1g.10gb", 6))
    await parts.driver.prepare(raw)
    not_by_hand(machine.root, 0, 6)
    await parts.driver.prepare(raw)
    assert instances(machine.root) == [(0, 6, 1)]


async def test_a_half_made_instance_of_a_dead_process_is_removed(machine, parts):
    raw = claim(1, part(machine, "1g.10gb", 6))
    parts.executor.begin(parts.planned(raw))
    machine.refuse("nvmlGpuInstanceCreateComputeInstance", UNKNOWN)
    mode, create = parts.record().steps
    parts.hardware.do(mode)
    with pytest.raises(HardwareError):
        parts.hardware.do(create)
    assert instances(machine.root) == [(0, 6, 1)]
    again = machine.start(BOTH)
    (report,) = again.driver.recover()
    assert report.outcome is Outcome.ROLLED_BACK
    assert instances(machine.root) == []


async def test_a_damaged_record_is_rebuilt_over_its_own_partition(machine, parts):
    raw = claim(1, part(machine, "1g.10gb", 6))
    await parts.driver.prepare(raw)
    path = next(machine.claims.glob("*.json"))
    path.write_text("damaged")
    again = machine.start(BOTH)
    assert len(again.journal.damaged) == 1
    await again.driver.prepare(raw)
    assert again.record().state is ClaimState.COMPLETED
    assert instances(machine.root) == [(0, 6, 1)]
    await again.driver.unprepare(ref())
    assert instances(machine.root) == []


async def test_without_its_record_an_instance_is_nobodys(machine, parts):
    """A lost journal: our own live instance must not turn up as somebody's static one."""
    machine.start(ADOPTING).refresh()
    parts = machine.start(ADOPTING)
    await parts.driver.prepare(claim(1, part(machine, "1g.10gb", 6)))
    parts.refresh()
    parts.cards.save()
    next(machine.claims.glob("*.json")).unlink()
    again = machine.start(ADOPTING)
    assert not any(getattr(each, "adopted", False) for each in again.cards.devices.values())
    keys = taint_keys(again.pool(features=FEATURES))
    assert keys[part(machine, "1g.10gb", 6)] == ["partition"]
    assert keys[machine.device(0)] == ["partition"]
    assert keys[part(machine, "1g.10gb", 0)] == []


# Adopted ----------------------------------------------------------------------------------


@pytest.fixture
def adopting(machine):
    by_hand(machine.root, 0, "3g.40gb", 4)
    parts = machine.start(ADOPTING)
    parts.cards.save()
    return parts


async def test_an_adopted_partition_is_used_and_never_destroyed(machine, adopting):
    device = part(machine, "3g.40gb", 4)
    assert device in taint_keys(adopting.pool(features=FEATURES))
    (answer,) = await adopting.driver.prepare(claim(1, device))
    assert answer.device == device
    assert adopting.record().steps == ()
    with pytest.raises(DeviceConflictError):
        await adopting.driver.prepare(claim(2, device))
    await adopting.driver.unprepare(ref())
    assert instances(machine.root) == [(0, 4, 4)]


async def test_dynamic_ones_are_made_beside_it(machine, adopting):
    await adopting.driver.prepare(claim(1, part(machine, "3g.40gb", 4)))
    await adopting.driver.prepare(claim(2, part(machine, "1g.10gb", 0)))
    assert instances(machine.root) == [(0, 0, 1), (0, 4, 4)]


def test_the_list_is_written_down_when_the_card_is_first_seen(machine, adopting):
    by_hand(machine.root, 0, "1g.10gb", 0)
    again = machine.start(ADOPTING)
    keys = taint_keys(again.pool(features=FEATURES))
    assert keys[part(machine, "3g.40gb", 4)] == []
    assert keys[part(machine, "1g.10gb", 0)] == ["partition"]


async def test_one_that_is_gone_is_not_offered_and_refused(machine, adopting):
    device = part(machine, "3g.40gb", 4)
    not_by_hand(machine.root, 0, 4)
    with pytest.raises(UnknownDeviceError, match=r"was adopted .* and is gone"):
        await adopting.driver.prepare(claim(1, device))


def test_a_list_that_cannot_be_read_is_forgotten(machine, caplog):
    parts = machine.start(ADOPTING)
    parts.cards._strangers.from_data({machine.uuids[0]: [["x"]]})
    assert "are forgotten" in caplog.text
    parts.cards._strangers.from_data([])


# Strangers --------------------------------------------------------------------------------


def test_a_stranger_is_told_once_and_forgotten_when_it_goes(machine, parts):
    by_hand(machine.root, 0, "2g.20gb", 2)
    (change,) = parts.cards.refresh(set(), parts.watch.places)
    assert change.reason == "StrangePartition"
    assert "memory slices 2 to 3" in change.text
    assert parts.cards.refresh(set(), parts.watch.places) == ()
    not_by_hand(machine.root, 0, 2)
    parts.refresh()
    keys = taint_keys(parts.pool(features=FEATURES))
    assert not any(keys.values())


def test_a_card_whose_instances_cannot_be_read_keeps_what_was_known(machine, parts):
    by_hand(machine.root, 0, "2g.20gb", 2)
    parts.refresh()
    machine.refuse("nvmlDeviceGetGpuInstances", UNKNOWN, count=None)
    parts.refresh()
    keys = taint_keys(parts.pool(features=FEATURES))
    assert keys[part(machine, "2g.20gb", 2)] == ["partition"]


async def test_our_own_partitions_are_no_strangers(machine, parts):
    await parts.driver.prepare(claim(1, part(machine, "2g.20gb", 2)))
    assert parts.cards.refresh(set(), parts.watch.places) == ()
    assert not any(taint_keys(parts.pool(features=FEATURES)).values())
    (record,) = parts.journal.all()
    assert record.places == ((machine.uuids[0], Placement(2, 2)),)


def test_a_card_that_waits_for_a_reset_is_tainted(machine, parts):
    with Store(machine.root).update() as world:
        world.change(0).mig_pending = True
    parts.refresh()
    keys = taint_keys(parts.pool(features=FEATURES))
    assert keys[machine.device(0)] == ["migMode"]
    assert keys[machine.device(1)] == []


async def test_without_counters_nothing_is_given_out_twice(machine, parts):
    device = part(machine, "1g.10gb", 6)
    await parts.driver.prepare(claim(1, device))
    parts.refresh()
    keys = taint_keys(parts.pool())
    assert keys == {device: ["policy"], machine.device(1): []}


async def test_a_partition_that_the_policy_takes_out_stays_while_it_is_held(machine, parts):
    device = part(machine, "1g.10gb", 6)
    await parts.driver.prepare(claim(1, device))
    parts.cards.policy = NodePolicy()
    parts.refresh()
    pool = parts.pool(features=FEATURES)
    assert taint_keys(pool)[device] == ["policy"]
    assert [part.key for part in pool.slices if part.shared_counters]


async def test_the_health_stream_tells_partitions_that_are_offered(machine, parts):
    names = {each.device for each in parts.cards.device_health()}
    assert part(machine, "1g.10gb", 6) in names
    control.lose(machine.root, 0)
    await parts.watch.refresh()
    sick = {each.device for each in parts.cards.device_health() if not each.healthy}
    assert part(machine, "1g.10gb", 6) in sick
    assert part(machine, "1g.10gb", 6, card=1) not in sick
