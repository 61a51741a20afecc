"""Shares of cards: prepared, refused and taken back on simulated cards, with a supervisor in
memory."""

import threading

import pytest

from driver.errors import ClaimError, DeviceConflictError, DriverError, HardwareError
from driver.model.claims import ClaimState
from driver.model.ids import ClaimUid, DeviceName
from driver.plan.layout import EVERYTHING
from driver.sharing import Seen
from driver.sim import control
from driver.sim.store import Store
from driver.state.known import Known
from tests.driver.machine import EXCLUSIVE, SHARED, claim, pod_uid, ref, share, taint_keys, uid

LONG = {"kind": "TimeSliceConfig", "interval": "Long"}
GIB = 1 << 30


@pytest.fixture
def parts(sharing):
    return sharing


@pytest.fixture
def newest(machine, supervisor):
    """The same with a driver that has namespaces."""
    control.set_driver_version(machine.root, "615.71.09")
    made = machine.start(SHARED)
    look(made)
    return made


@pytest.fixture
def settable(parts):
    assert parts.cards.look_at_time_slices(set()) == ""
    return parts


def look(parts):
    return parts.look_at_supervisor()


def mps(machine, card=0):
    return f"{machine.device(card)}-mps"


def turn(machine, card=0):
    return f"{machine.device(card)}-timeslice"


def published(parts, *held):
    return taint_keys(parts.cards.pool({DeviceName(each) for each in held}, EVERYTHING))


def environment(machine, n=1):
    (device, *_) = machine.spec(n)["devices"]
    return dict(entry.split("=", 1) for entry in device["containerEdits"]["env"])


def time_slice(machine, card=0):
    return Store(machine.root).read().gpu(card).time_slice


# MPS ----------------------------------------------------------------------------------------


async def test_two_claims_share_a_card_and_leave_it_as_it_was(machine, newest, supervisor):
    parts, first, gpu = newest, mps(machine), machine.uuids[0]
    await parts.driver.prepare(share(1, first))
    await parts.driver.prepare(share(2, first, memory="30Gi", percent=40))
    assert machine.compute_mode(0) == EXCLUSIVE
    assert list(supervisor.states) == [gpu]
    env = environment(machine)
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(
        supervisor.states[gpu].pipe_directory / "card" / f"{uid().replace('-', '')}_0"
    )
    assert (env["ALIQUOT_DEVICE_MEMORY_BYTES"], env["ALIQUOT_DEVICE_COMPUTE_PERCENT"]) == (
        str(14 * GIB),
        "25",
    )
    assert {space.memory_limit for space in supervisor.spaces[gpu].values()} == {
        14 * GIB,
        30 * GIB,
    }
    await parts.driver.unprepare(ref(1))
    assert machine.compute_mode(0) == EXCLUSIVE
    assert list(supervisor.spaces[gpu]) == [f"{uid(2).replace('-', '')}_0"]
    await parts.driver.unprepare(ref(2))
    assert machine.compute_mode(0) == 0
    assert supervisor.states == {}
    await parts.driver.prepare(claim(3, machine.device(0)))  # free for anything


async def test_before_protocol_3_limits_come_by_environment(machine, parts, supervisor):
    await parts.driver.prepare(share(1, mps(machine)))
    env = environment(machine)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=14336M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert supervisor.spaces == {}


async def test_a_further_share_asks_nobody_and_hands_nothing_to_a_thread(
    machine, parts, supervisor, monkeypatch
):
    first = mps(machine)
    await parts.driver.prepare(share(1, first))
    look(parts)
    parts.cards.look_ahead()
    threads = []
    real = parts.driver.project

    def project(record):
        threads.append(threading.current_thread())
        return real(record)

    monkeypatch.setattr(parts.driver, "project", project)
    supervisor.away = "nobody is there"
    await parts.driver.prepare(share(2, first))
    assert threads == [threading.main_thread()]
    assert parts.record(2).state is ClaimState.COMPLETED
    assert (
        environment(machine, 2)["CUDA_MPS_PIPE_DIRECTORY"]
        == (environment(machine, 1)["CUDA_MPS_PIPE_DIRECTORY"])
    )
    supervisor.away = ""
    await parts.driver.unprepare(ref(1))
    assert machine.compute_mode(0) == EXCLUSIVE
    await parts.driver.unprepare(ref(2))
    assert supervisor.states == {}
    assert machine.compute_mode(0) == 0


async def test_a_repeat_changes_nothing(machine, parts, supervisor):
    await parts.driver.prepare(share(1, mps(machine)))
    files = machine.files()
    supervisor.calls.clear()
    await parts.driver.prepare(share(1, mps(machine)))
    assert machine.files() == files
    assert not {"ensure", "ensure_namespace"} & set(supervisor.calls)


async def test_without_a_supervisor_a_share_is_refused_and_nothing_is_left(
    machine, parts, supervisor
):
    supervisor.away = "no answer at /run/x: nobody listens there"
    with pytest.raises(HardwareError, match="nobody listens there"):
        await parts.driver.prepare(share(1, mps(machine)))
    record = parts.record()
    assert record is not None  # the daemon may have been started: its stop is still owed
    assert record.state is ClaimState.STARTED
    supervisor.away = ""
    await parts.driver.unprepare(ref())
    assert parts.record() is None
    assert machine.compute_mode(0) == 0
    await parts.driver.prepare(share(1, mps(machine)))


async def test_what_needs_no_supervisor_works_without_one(machine, parts, supervisor):
    await parts.driver.prepare(share(1, mps(machine), memory="10Gi"))
    supervisor.away = "gone"
    await parts.driver.prepare(claim(3, machine.device(1)))
    await parts.driver.unprepare(ref(3))
    with pytest.raises(HardwareError, match="gone"):
        await parts.driver.unprepare(ref(1))
    supervisor.away = ""
    await parts.driver.unprepare(ref(1))
    assert (supervisor.states, machine.compute_mode(0)) == ({}, 0)


async def test_a_refusal_of_the_control_program_rolls_back(machine, parts, supervisor):
    supervisor.refuses = "set_default_device_pinned_mem_limit 0 1M: 2M is read back"
    with pytest.raises(HardwareError, match="2M is read back") as caught:
        await parts.driver.prepare(share(1, mps(machine)))
    assert "the roll-back is not finished" in str(caught.value)
    supervisor.refuses = ""
    assert [str(each.outcome.value) for each in parts.driver.recover()] == ["rolledBack"]
    assert (machine.compute_mode(0), parts.record()) == (0, None)


async def test_a_card_with_an_unknown_process_is_refused_with_its_name(machine, parts):
    control.set_process(machine.root, 0, 4711, GIB)
    control.place_process(machine.root, 4711, name="Xorg")
    for wanted in (share(1, mps(machine)), share(1, turn(machine))):
        with pytest.raises(DeviceConflictError, match=r"belong to no claim: 4711 \(Xorg\)"):
            await parts.driver.prepare(wanted)
    assert machine.compute_mode(0) == 0
    control.clear_processes(machine.root, 0)
    await parts.driver.prepare(share(1, mps(machine)))
    control.set_process(machine.root, 0, 4711, GIB, "mps")  # a client of the first share
    await parts.driver.prepare(share(2, mps(machine)))


async def test_a_server_that_is_just_ending_is_no_stranger(machine, parts):
    control.set_process(machine.root, 0, 4711, GIB)
    control.place_process(machine.root, 4711, name="nvidia-cuda-mps-server")
    await parts.driver.prepare(share(1, mps(machine)))


async def test_shares_and_whole_cards_exclude_each_other(machine, parts):
    await parts.driver.prepare(share(1, mps(machine)))
    for other in (claim(2, machine.device(0)), share(2, turn(machine))):
        with pytest.raises(DeviceConflictError, match=uid(1)):
            await parts.driver.prepare(other)
    await parts.driver.prepare(claim(2, machine.device(1)))


async def test_two_shares_of_one_claim_are_two_allocations(machine, newest, supervisor):
    parts = newest
    await parts.driver.prepare(share(1, mps(machine), mps(machine), memory="10Gi"))
    assert len(supervisor.spaces[machine.uuids[0]]) == 2
    assert len(machine.spec()["devices"]) == 2
    await parts.driver.unprepare(ref())
    assert supervisor.states == {}


@pytest.mark.parametrize("config", [{"kind": "MpsConfig"}, {"kind": "TimeSliceConfig"}])
async def test_an_empty_config_is_no_config(machine, parts, config):
    device = mps(machine) if config["kind"] == "MpsConfig" else turn(machine)
    await parts.driver.prepare(share(1, device, config=config))


async def test_a_demand_that_the_node_cannot_meet_is_refused(machine, parts, supervisor):
    config = {"kind": "MpsConfig", "requireEnforcement": "mpsProcess"}
    with pytest.raises(ClaimError, match="requireEnforcement"):
        await parts.driver.prepare(share(1, mps(machine), config=config))
    assert supervisor.states == {}


# What is published --------------------------------------------------------------------------


def test_shares_are_offered_once_a_supervisor_answers(machine, supervisor):
    parts = machine.start(SHARED)
    assert mps(machine) not in published(parts)
    look(parts)
    assert published(parts)[mps(machine)] == []
    parts.cards.take_sharing(Seen(problem="gone"), set())
    assert published(parts)[mps(machine)] == ["mps"]
    assert published(parts, mps(machine))[mps(machine)] == ["mps"]  # never withdrawn


def test_what_the_supervisor_can_do_outlives_a_restart(machine, parts):
    parts.cards.save()
    again = machine.start(SHARED)
    again.cards.take_sharing(Seen(problem="not there yet"), set())
    assert published(again)[mps(machine)] == ["mps"]
    assert again.cards.sharing == parts.cards.sharing


@pytest.mark.parametrize("kept", [7, {"facts": {}}, {"facts": {"mps": None, "intervals": False}}])
def test_what_was_kept_of_sharing_may_be_nonsense(machine, supervisor, caplog, kept):
    Known(machine.known).save({"sharing": kept})
    parts = machine.start(SHARED)
    assert "what was known of sharing is forgotten" in caplog.text
    assert mps(machine) not in published(parts)


async def test_a_dead_daemon_taints_its_card_until_it_is_back(machine, parts, supervisor):
    await parts.driver.prepare(share(1, mps(machine)))
    assert look(parts) == ()
    supervisor.die(machine.uuids[0], "killed by signal 9")
    (change,) = look(parts)
    assert (change.gpu, change.reason) == (machine.uuids[0], "MpsDaemonDown")
    assert "killed by signal 9" in change.text
    assert published(parts, mps(machine))[mps(machine)] == ["mps"]
    assert published(parts)[mps(machine, 1)] == []
    (told,) = [h for h in parts.cards.device_health() if h.device == mps(machine)]
    assert (told.healthy, "killed by signal 9" in told.message) == (False, True)
    supervisor.recover(machine.uuids[0])
    (change,) = look(parts)
    assert (change.text, change.mended) == ("", "MpsDaemonBack")
    assert published(parts, mps(machine))[mps(machine)] == []


# Restarts -----------------------------------------------------------------------------------


async def test_a_restart_of_the_driver_leaves_shares_alone(machine, parts, supervisor):
    await parts.driver.prepare(share(1, mps(machine)))
    parts.cards.save()
    supervisor.calls.clear()
    again = machine.start(SHARED)
    assert [each.outcome.value for each in again.driver.recover()] == ["intact"]
    assert not {"ensure", "stop", "delete_namespace"} & set(supervisor.calls)


async def test_a_claim_is_answered_after_a_restart_while_the_supervisor_is_away(
    machine, parts, supervisor
):
    await parts.driver.prepare(share(1, mps(machine)))
    parts.cards.save()
    supervisor.away = "gone"
    again = machine.start(SHARED)
    machine.cdi_file().unlink()
    assert await again.driver.recall(ref()) is not None
    assert environment(machine)["CUDA_MPS_PIPE_DIRECTORY"]


async def test_a_reboot_makes_shares_again(machine, settable, supervisor):
    parts = settable
    await parts.driver.prepare(share(1, mps(machine)))
    await parts.driver.prepare(share(2, turn(machine, 1), config=LONG))
    control.reboot(machine.root)
    supervisor.states.clear()
    supervisor.spaces.clear()
    again = machine.start(SHARED)
    assert {each.outcome.value for each in again.driver.recover()} == {"redone"}
    assert machine.compute_mode(0) == EXCLUSIVE
    assert list(supervisor.states) == [machine.uuids[0]]
    assert time_slice(machine, 1) == 3


# Time slices --------------------------------------------------------------------------------


async def test_a_time_slice_is_set_and_restored_after_the_last_claim(machine, settable):
    parts = settable
    await parts.driver.prepare(share(1, turn(machine), config=LONG))
    await parts.driver.prepare(share(2, turn(machine)))
    assert (time_slice(machine), machine.compute_mode(0)) == (3, 0)
    with pytest.raises(DeviceConflictError, match="SHORT is asked for"):
        await parts.driver.prepare(
            share(3, turn(machine), config={"kind": "TimeSliceConfig", "interval": "Short"})
        )
    await parts.driver.unprepare(ref(1))
    await parts.driver.unprepare(ref(2))
    assert time_slice(machine) == 0


async def test_claims_without_a_time_slice_never_run_nvidia_smi(machine, parts):
    control.set_smi(machine.root, "missing")
    for n, wanted in enumerate((claim(1, machine.device(0)), share(2, mps(machine, 1)))):
        await parts.driver.prepare(wanted)
        await parts.driver.unprepare(ref(n + 1))
    await parts.driver.prepare(share(3, turn(machine)))
    await parts.driver.unprepare(ref(3))


async def test_a_failing_nvidia_smi_keeps_only_its_own_claim(machine, settable):
    parts = settable
    await parts.driver.prepare(share(1, turn(machine), config=LONG))
    await parts.driver.prepare(claim(2, machine.device(1)))
    control.set_smi(machine.root, "fails")
    await parts.driver.unprepare(ref(2))
    with pytest.raises(DriverError, match="NVIDIA-SMI has failed"):
        await parts.driver.unprepare(ref(1))
    control.set_smi(machine.root, "ok")
    await parts.driver.unprepare(ref(1))
    assert (time_slice(machine), parts.record(1)) == (0, None)


async def test_a_refusal_with_status_0_rolls_the_claim_back(machine, settable):
    control.set_smi(machine.root, "silent")
    with pytest.raises(DriverError, match="LONG was wanted"):
        await settable.driver.prepare(share(1, turn(machine), config=LONG))
    assert settable.record() is None


@pytest.mark.parametrize("state", ["missing", "old", "unsupported"])
async def test_a_node_that_cannot_set_intervals_says_so_before_anything(machine, parts, state):
    control.set_smi(machine.root, state)
    assert parts.cards.look_at_time_slices(set()) != ""
    with pytest.raises(DriverError, match="cannot set time slices"):
        await parts.driver.prepare(share(1, turn(machine), config=LONG))
    await parts.driver.prepare(share(1, turn(machine)))  # a turn all the same


async def test_processes_are_told_with_the_claims_of_their_pods(machine, parts):
    await parts.driver.prepare(share(1, mps(machine)))
    for pid, name, pod in ((1, "a", "p"), (2, "b", None), (3, "nvidia-cuda-mps-server", None)):
        control.set_process(machine.root, 0, pid, GIB)
        control.place_process(machine.root, pid, name=name, pod=pod and pod_uid(1))
    owner, other = ClaimUid(uid(1)), ClaimUid(uid(2))
    pods = {owner: {pod_uid(1)}, other: {pod_uid(1), pod_uid(2)}}
    found = [(each.pid, each.claim) for each in parts.cards.users(machine.uuids[0], pods)]
    assert found == [(1, owner), (1, other), (2, None)]
