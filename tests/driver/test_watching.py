"""The card watch with real events, NVML that comes and goes, and the policy file."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress

import pynvml
import pytest

from api.policy import NodePolicy, parse_policy
from driver.errors import HardwareError, PolicyError
from driver.hw.health import HealthSource
from driver.model.readings import XidEvent
from driver.sim import control
from driver.watching import PolicyFile, read_policy
from tests.driver.machine import NODE, claim, taint_keys
from tests.polling import eventually

DRIVER_NOT_LOADED = 9
BAD_XID = 79


@asynccontextmanager
async def listening(parts):
    task = asyncio.create_task(parts.watch.listen())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def waiters() -> Iterator[threading.Thread]:
    return (thread for thread in threading.enumerate() if thread.name == "nvml events")


async def test_a_refresh_publishes_and_tells_nothing_where_all_is_well(machine, parts):
    assert not parts.watch.answered
    await parts.watch.refresh()
    assert parts.watch.answered
    assert parts.told == []
    assert taint_keys(parts.published[-1]) == {machine.device(0): [], machine.device(1): []}


async def test_a_poll_that_finds_nothing_new_publishes_nothing(machine, parts):
    await parts.watch.refresh()
    parts.published.clear()
    await parts.watch.poll()
    assert parts.published == []


async def test_an_xid_outlasts_the_readings_that_it_causes_itself(machine, parts):
    """The driver asks for a recovery only some time later."""
    await parts.watch.refresh()
    event = XidEvent(machine.uuids[1], 48)
    await parts.watch.take([event])
    await parts.watch.take([event])
    await parts.watch.refresh()
    await parts.watch.refresh()
    assert parts.cards.health[machine.uuids[1]].xid == 48
    await parts.watch.poll()
    await parts.watch.poll()
    assert parts.cards.health[machine.uuids[1]].xid is None


async def test_a_poll_finds_a_lost_card_and_its_return(machine, parts):
    await parts.watch.refresh()
    control.lose(machine.root, 1)
    await parts.watch.poll()
    assert taint_keys(parts.published[-1])[machine.device(1)] == ["lost"]
    control.restore(machine.root, 1)
    await parts.watch.poll()
    assert taint_keys(parts.published[-1])[machine.device(1)] == []
    assert [change.gpu for change in parts.told] == [machine.uuids[1]] * 2
    assert "is lost" in parts.told[0].text
    assert parts.told[1].text == ""


async def test_nvml_that_is_missing_at_start_is_found_later(machine):
    control.set_library(machine.root, "missing")
    parts = machine.start(refresh=False)
    await parts.watch.refresh()
    assert "libnvidia-ml.so.1 was not found" in parts.watch.problem
    assert parts.watch.answered
    assert taint_keys(parts.published[-1]) == {}
    control.set_library(machine.root, "ok")
    await parts.watch.poll()  # a poll is enough: it enumerates while there is a problem
    assert parts.watch.problem == ""
    assert taint_keys(parts.published[-1]) == {machine.device(0): [], machine.device(1): []}


async def test_the_same_problem_is_logged_once(machine, caplog):
    control.set_library(machine.root, "not_loaded")
    parts = machine.start(refresh=False)
    await parts.watch.refresh()
    await parts.watch.refresh()
    assert caplog.text.count("the cards of this node cannot be read") == 1


async def test_nvml_that_refuses_without_being_gone_stays_open(machine, parts):
    await parts.watch.refresh()
    machine.refuse("nvmlDeviceGetCount", 999)
    await parts.watch.refresh()
    assert "nvmlDeviceGetCount" in parts.watch.problem
    assert parts.nvml.count() == 2
    await parts.watch.poll()
    assert parts.watch.problem == ""


async def test_a_claim_is_told_why_the_cards_cannot_be_used(machine, parts):
    await parts.watch.refresh()
    machine.refuse("nvmlDeviceGetCount", DRIVER_NOT_LOADED)
    await parts.watch.refresh()
    with pytest.raises(HardwareError, match=r"the node's cards cannot be used.*modprobe nvidia"):
        await parts.driver.prepare(claim(1, machine.device(0)))
    await parts.watch.poll()
    await parts.driver.prepare(claim(1, machine.device(0)))


async def test_a_driver_that_goes_away_makes_every_card_lost_until_it_is_back(machine, parts):
    await parts.watch.refresh()
    machine.refuse("nvmlDeviceGetMemoryInfo", DRIVER_NOT_LOADED)
    await parts.watch.poll()
    assert "no kernel driver answers" in parts.watch.problem
    assert set(map(tuple, taint_keys(parts.published[-1]).values())) == {("lost",)}
    later = machine.start(refresh=False)
    assert all(health.lost for health in later.cards.health.values())  # kept at once
    await later.watch.poll()
    await later.watch.refresh()
    assert taint_keys(later.published[-1]) == {machine.device(0): [], machine.device(1): []}


async def test_nvml_that_was_shut_down_by_a_driver_reload_is_opened_again(machine, parts):
    await parts.watch.refresh()
    pynvml.nvmlShutdown()  # behind the driver's back: every call answers UNINITIALIZED from now on
    await parts.watch.poll()
    assert "UNINITIALIZED" in parts.watch.problem
    await parts.watch.poll()
    await parts.watch.refresh()
    assert parts.watch.problem == ""
    assert taint_keys(parts.published[-1]) == {machine.device(0): [], machine.device(1): []}


async def test_a_held_card_is_known_to_be_held(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0)))
    assert parts.watch.held_gpus() == {machine.uuids[0]}
    assert parts.watch.held_devices() == {machine.device(0)}


async def test_a_card_that_the_policy_leaves_no_room_is_told_once_with_the_rule(
    machine, parts, caplog
):
    text = "gpus: [{select: {all: true}, modes: [gpu, mps], reserve: %s}]"
    parts.cards.policy = parse_policy(text % "90Gi", "policy.yaml")
    await parts.watch.refresh()
    await parts.watch.refresh()
    assert {change.gpu for change in parts.told} == set(machine.uuids)
    assert [change.reason for change in parts.told] == ["PolicyLeavesNoRoom"] * 2
    assert "gpus[0].reserve is 90Gi" in parts.told[0].text
    assert caplog.text.count(f"card {machine.uuids[0]}: NVIDIA H100") == 1
    for reserve in ("1Gi", "90Gi"):  # mended, and wrong again
        parts.cards.policy = parse_policy(text % reserve, "policy.yaml")
        await parts.watch.refresh()
    assert len(parts.told) == 4


# Events ----------------------------------------------------------------------------------


async def test_an_event_taints_its_card_and_outlives_a_restart(machine, parts):
    await parts.watch.refresh()
    async with listening(parts):
        await eventually(lambda: parts.source._events, "the cards are registered")
        control.xid(machine.root, 0, BAD_XID)
        await eventually(lambda: parts.told, "the event is told")
        await eventually(lambda: not parts.watch._turn.locked(), "the poll after it is over")
    assert parts.told[0].text == f"XID {BAD_XID}"
    assert taint_keys(parts.published[-1])[machine.device(0)] == ["xid"]
    later = machine.start(refresh=False)
    assert later.cards.health[machine.uuids[0]].xid == BAD_XID


async def test_an_event_of_a_lost_card_makes_the_watch_poll(machine, parts):
    await parts.watch.refresh()
    async with listening(parts):
        await eventually(lambda: parts.source._events)
        control.lose(machine.root, 1)
        control.xid(machine.root, 0, 43)  # of an application: taints nothing by itself
        await eventually(lambda: parts.told)
    assert parts.told[0].gpu == machine.uuids[1]


async def test_the_thread_that_waits_ends_with_its_task(parts):
    await parts.watch.refresh()
    before = set(waiters())
    async with listening(parts):
        await eventually(lambda: set(waiters()) - before)
    await eventually(lambda: not set(waiters()) - before, "the thread has ended")


async def test_an_error_of_the_wait_is_survived(machine, parts, caplog, monkeypatch):
    monkeypatch.setattr("driver.watching._PAUSE_S", 0.01)
    await parts.watch.refresh()
    machine.refuse("nvmlEventSetCreate", DRIVER_NOT_LOADED, count=2)
    async with listening(parts):
        await eventually(lambda: "waiting for NVML events" in caplog.text)
        await eventually(lambda: parts.source._events)
        control.xid(machine.root, 1, BAD_XID)
        await eventually(lambda: parts.told)
    assert parts.told[0].gpu == machine.uuids[1]


async def test_a_bug_in_the_wait_ends_the_watch_with_it(machine, parts, monkeypatch):
    def broken(self, timeout_s):
        raise KeyError("bug")

    monkeypatch.setattr(HealthSource, "wait", broken)
    with pytest.raises(KeyError):
        await parts.watch.listen()


# The policy file -------------------------------------------------------------------------


def test_without_a_file_the_default_policy_holds():
    assert read_policy(None, NODE) == NodePolicy()
    assert PolicyFile(None, NODE).changed() is None


def test_the_policy_is_that_of_the_node(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("nodes:\n- nodeName: node-1\n  taintEffect: NoExecute\n")
    assert read_policy(path, NODE).taint_effect == "NoExecute"
    assert read_policy(path, "node-2").taint_effect == "NoSchedule"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_policy_that_cannot_be_read_says_so(tmp_path, content):
    path = tmp_path / "policy.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PolicyError, match="cannot be read") as raised:
        read_policy(path, NODE)
    assert str(path) in str(raised.value)


def test_every_mistake_of_a_policy_is_told(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("taintEffect: Maybe\nignoredXids: [0]\nwings: 2\n")
    with pytest.raises(PolicyError) as raised:
        read_policy(path, NODE)
    assert len(raised.value.problems) == 3


def test_a_changed_policy_file_is_taken_and_a_bad_one_reported(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("taintEffect: NoSchedule\n")
    file = PolicyFile(path, NODE)
    assert file.changed() is None
    path.write_text("taintEffect: Maybe\n")
    assert file.changed() is None
    assert "taintEffect" in file.problem
    assert file.changed() is None  # looked at once
    assert "taintEffect" in file.problem  # and still bad
    path.write_text("taintEffect: NoExecute\n")
    policy = file.changed()
    assert policy is not None
    assert policy.taint_effect == "NoExecute"
    assert file.problem == ""
    path.unlink()
    assert file.changed() is None
    assert "cannot be read" in file.problem
