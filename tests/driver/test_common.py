"""What is looked at while the API server is asked for a claim."""

import asyncio
import json
import threading

import pytest

from driver.common import CommonParts
from driver.errors import ClaimError, HardwareError
from driver.sim import control
from kubeletplugin.claims import ClaimReader
from tests.driver.machine import claim, ref
from tests.hw.toolkit import CUDA, stand_in, write_program
from tests.polling import eventually


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def warnings(caplog):
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def common(parts, clock):
    return CommonParts(parts.hardware, clock)


def test_what_was_looked_at_ahead_is_taken_for_half_a_second(machine, parts, common, clock):
    common.look_ahead(machine.uuids)
    found = common.take()
    assert found is common.ahead
    assert set(found.nodes) == set(machine.uuids)
    assert found.edits["mounts"]
    clock.now += 0.6
    assert common.ahead is None
    assert common.take().nodes == {}
    assert common.take().edits is found.edits


def test_what_was_looked_at_moments_ago_is_not_looked_at_again(machine, common, clock):
    common.look_ahead(machine.uuids)
    first = common.ahead
    common.look_ahead(machine.uuids)
    assert common.ahead is first
    clock.now += 0.06
    common.look_ahead(machine.uuids)
    assert common.ahead is not first


def test_what_all_containers_get_is_made_anew_when_the_node_has_changed(machine, common):
    before = common.take().edits
    library = machine.root / "usr/lib/x86_64-linux-gnu/libnvidia-more.so.580.105.08"
    library.write_bytes(b"")
    after = common.take().edits
    added = [each for each in after["mounts"] if each not in before["mounts"]]
    assert [each["hostPath"] for each in added] == [str(library)]


def test_the_toolkit_of_the_node_says_what_containers_get(machine, common):
    toolkit = stand_in(machine.root / "usr/bin", machine.root)
    found = common.take().edits
    assert found["hooks"] == toolkit["hooks"]
    assert [each["containerPath"] for each in found["mounts"]] == [CUDA]
    assert "/dev/nvidiactl" in [node["path"] for node in found["deviceNodes"]]
    assert "NVIDIA_VISIBLE_DEVICES=void" in found["env"]
    assert common.take().edits is found


def test_a_toolkit_that_fails_is_told_once_and_the_files_are_mounted_without_it(
    machine, common, caplog
):
    own = common.take().edits
    write_program(machine.root / "usr/bin", "echo no such mode >&2; exit 1")
    assert common.take().edits == own
    assert common.take().edits == own
    (said,) = warnings(caplog)
    assert "containers get the driver's files without its hooks" in said
    assert "status 1: no such mode" in said
    stand_in(machine.root / "usr/bin", machine.root)
    assert common.take().edits["hooks"]
    (machine.root / "usr/bin/nvidia-ctk").unlink()
    assert common.take().edits == own
    write_program(machine.root / "usr/bin", "echo no such mode >&2; exit 1")
    assert common.take().edits == own
    assert len(warnings(caplog)) == 2


def test_a_toolkit_that_fails_later_takes_no_hooks_from_prepared_claims(machine, common, caplog):
    bin_ = machine.root / "usr/bin"
    stand_in(bin_, machine.root)
    made = common.take().edits
    write_program(bin_, "exit 1")
    assert common.take().edits is made
    assert "containers get what it made before" in warnings(caplog)[0]
    (machine.root / "usr/lib/x86_64-linux-gnu/libnvidia-more.so.580.105.08").write_bytes(b"")
    assert "hooks" not in common.take().edits


@pytest.mark.parametrize(
    "wrong",
    [
        {"env": ["A"]},
        {"hooks": [{"hookName": "poststop", "path": "relative"}]},
        {"deviceNodes": [{"hostPath": "/dev/x"}]},
    ],
)
async def test_claims_are_prepared_beside_a_toolkit_that_prints_what_runtimes_refuse(
    machine, parts, caplog, wrong
):
    stand_in(machine.root / "usr/bin", machine.root, **wrong)
    await parts.driver.prepare(claim(1, machine.device(0)))
    assert "hooks" not in json.loads(machine.cdi_file(1).read_text())["containerEdits"]
    assert "printed what cannot be used" in warnings(caplog)[0]
    machine.cdi_file(1).unlink()
    assert [each.error for each in parts.driver.recover()] == [None]
    assert machine.cdi_file(1).exists()


async def test_parts_that_runtimes_refuse_reach_no_file(machine, parts):
    """Such as a library whose name has a line break: no toolkit is there to be blamed."""
    name = "lib\nnvidia-x.so.580.105.08"
    (machine.root / "usr/lib/x86_64-linux-gnu" / name).write_bytes(b"")
    for n in (1, 2):
        with pytest.raises(ClaimError, match="a line break or NUL"):
            await parts.driver.prepare(claim(n, machine.device(0)))
    assert not machine.cdi_file(1).exists()


def test_device_nodes_that_all_cards_share_are_looked_at_again(machine, common):
    before = common.take().edits
    (machine.root / "dev/nvidia-modeset").unlink()
    after = common.take().edits
    gone = [node["path"] for node in before["deviceNodes"] if node not in after["deviceNodes"]]
    assert gone == ["/dev/nvidia-modeset"]


def test_many_cards_are_not_asked_one_by_one(machine, common):
    common.look_ahead([*machine.uuids, *map(str, range(16))])
    assert common.ahead.nodes == {}


def test_what_is_missing_ahead_is_told_when_it_is_needed(machine, common):
    (machine.root / "dev" / "nvidiactl").unlink()
    common.look_ahead(machine.uuids)
    assert common.ahead is None
    with pytest.raises(HardwareError, match="nvidiactl"):
        common.take()


async def test_a_claim_of_cards_that_were_looked_at_is_prepared_on_the_event_loop(machine, parts):
    threads = []
    project = parts.driver.project

    def noted(record):
        threads.append(threading.current_thread())
        return project(record)

    parts.driver.project = noted
    raw = claim(1, machine.device(0))
    await parts.driver.prepare(raw)  # nothing was looked at
    parts.cards.look_ahead()
    await parts.driver.prepare(raw)
    await parts.driver.unprepare(ref())
    await parts.driver.prepare(raw)
    here = threading.current_thread()
    assert [each is here for each in threads] == [False, True, True]


async def test_a_claim_that_changes_its_card_is_prepared_on_a_thread(machine, parts):
    threads = []
    do = parts.hardware.do

    def noted(step):
        threads.append(threading.current_thread())
        do(step)

    parts.hardware.do = noted
    parts.cards.look_ahead()
    raw = claim(1, machine.device(0), mode="ExclusiveProcess")
    await parts.driver.prepare(raw)
    await parts.driver.prepare(raw)
    await parts.driver.unprepare(ref())
    assert threads
    assert threading.current_thread() not in threads


async def test_a_card_that_is_lost_after_it_was_looked_at_is_still_refused_soon(machine, parts):
    parts.cards.look_ahead()
    control.lose(machine.root, 0)
    await parts.driver.prepare(claim(1, machine.device(0)))  # half a second old at most
    parts.cards._common._ahead = None
    with pytest.raises(HardwareError):
        await parts.driver.prepare(claim(1, machine.device(0)))


async def test_reading_a_claim_leaves_time_to_look_ahead(machine, parts):
    asked = asyncio.Event()
    go_on = asyncio.Event()

    class Slow:
        async def get(self, path, *, timeout):  # noqa: ASYNC109
            asked.set()
            await go_on.wait()
            return {}

    reader = ClaimReader(Slow(), lambda: parts.lanes.start(parts.cards.look_ahead))
    reading = asyncio.create_task(reader.get(ref()))
    await asked.wait()
    await eventually(lambda: parts.cards.looked_ahead(machine.uuids))
    go_on.set()
    assert await reading == {}
