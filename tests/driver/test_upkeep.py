"""Daemons and modes that outlived their claims, or are missing though claims need them."""

import pytest

from driver.model.gpu import ComputeMode
from driver.model.steps import SetComputeMode
from driver.pods import ClaimPods
from driver.sim import control
from driver.upkeep import Upkeep
from kubeletplugin.contract import ClaimRef
from mps.protocol import CardSpec, MpsRefusedError
from tests.driver.machine import EXCLUSIVE, claim, share
from tests.driver.test_shares import mps


class Told:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def node_event(self, kind: str, reason: str, note: str) -> None:
        self.notes.append(f"{reason}: {note}")

    def claim_event(self, ref: ClaimRef, kind: str, reason: str, note: str) -> None:
        self.notes.append(f"{ref.name}: {reason}: {note}")


@pytest.fixture
def parts(sharing):
    return sharing


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def upkeep(parts, told):
    return Upkeep(parts.hardware, parts.journal, parts.driver, parts.lanes, told, ClaimPods())


async def look(upkeep, parts, times=2):
    for _ in range(times):
        await upkeep.round(parts.cards.gpus.keys())


async def test_what_claims_need_is_left_alone(machine, parts, upkeep, supervisor, told):
    await parts.driver.prepare(share(1, mps(machine)))
    await parts.driver.prepare(claim(2, machine.device(1), mode="ExclusiveProcess"))
    await look(upkeep, parts, 3)
    assert (machine.compute_mode(0), machine.compute_mode(1)) == (EXCLUSIVE, EXCLUSIVE)
    assert len(supervisor.states) == 1
    assert told.notes == []


async def test_a_daemon_that_nobody_needs_is_stopped(machine, parts, upkeep, supervisor, told):
    gpu = machine.uuids[1]
    supervisor.ensure(CardSpec(gpu, None, 100, 2))
    parts.hardware.do(SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS))
    await look(upkeep, parts, 1)
    assert supervisor.states == {}
    assert machine.compute_mode(1) == 0
    assert len(told.notes) == 2
    assert all(note.startswith(f"LeftoverRemoved: card {gpu}: its ") for note in told.notes)


async def test_a_mode_that_nobody_asked_for_is_taken_back_the_second_time(
    machine, parts, upkeep, told
):
    parts.hardware.do(SetComputeMode(machine.uuids[0], ComputeMode.EXCLUSIVE_PROCESS))
    await look(upkeep, parts, 1)
    assert machine.compute_mode(0) == EXCLUSIVE
    await look(upkeep, parts, 1)
    assert machine.compute_mode(0) == 0
    (note,) = told.notes
    assert "EXCLUSIVE_PROCESS and is DEFAULT again" in note


async def test_prohibited_is_an_administrators_and_stays(machine, parts, upkeep):
    parts.hardware.do(SetComputeMode(machine.uuids[0], ComputeMode.PROHIBITED))
    await look(upkeep, parts, 3)
    assert machine.compute_mode(0) == ComputeMode.PROHIBITED.value


async def test_a_daemon_that_is_missing_is_made_again(machine, parts, upkeep, supervisor, caplog):
    await parts.driver.prepare(share(1, mps(machine)))
    before = dict(supervisor.states)
    supervisor.states.clear()
    await look(upkeep, parts, 1)
    assert supervisor.states == before
    assert "was gone, made again" in caplog.text


@pytest.mark.parametrize("what", ["away", "refuses"])
async def test_a_supervisor_in_trouble_is_left_for_the_next_round(
    machine, parts, upkeep, supervisor, what
):
    await parts.driver.prepare(share(1, mps(machine)))
    supervisor.states.clear()
    setattr(supervisor, what, "not now")
    await look(upkeep, parts, 2)
    setattr(supervisor, what, "")
    await look(upkeep, parts, 1)
    assert len(supervisor.states) == 1


async def test_a_refusal_while_mending_is_said(machine, parts, upkeep, supervisor, caplog):
    await parts.driver.prepare(share(1, mps(machine)))
    supervisor.states.clear()

    def refuse(spec):
        raise MpsRefusedError(f"not for {spec.gpu}")

    supervisor.ensure = refuse
    await look(upkeep, parts, 1)
    assert "lacks what it needs" in caplog.text


async def test_a_lost_card_does_not_stop_the_others(machine, parts, upkeep, supervisor, caplog):
    for gpu in machine.uuids:
        supervisor.ensure(CardSpec(gpu, None, 100, 2))
        parts.hardware.do(SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS))
    control.lose(machine.root, 0)
    await look(upkeep, parts, 1)
    assert machine.compute_mode(1) == 0
    assert "is not as it was before its last claim" in caplog.text
    control.restore(machine.root, 0)
    await look(upkeep, parts, 2)
    assert machine.compute_mode(0) == 0


async def test_without_a_supervisor_modes_are_looked_at_all_the_same(machine, told):
    machine.supervisor = None
    parts = machine.start()
    upkeep = Upkeep(parts.hardware, parts.journal, parts.driver, parts.lanes, told, ClaimPods())
    parts.hardware.do(SetComputeMode(machine.uuids[0], ComputeMode.EXCLUSIVE_PROCESS))
    await look(upkeep, parts)
    assert machine.compute_mode(0) == 0


async def test_a_claim_that_was_released_meanwhile_is_not_mended(machine, parts, supervisor):
    await parts.driver.prepare(share(1, mps(machine)))
    record = parts.record()
    assert not parts.driver.mend(record)  # nothing is missing
    supervisor.states.clear()
    parts.journal.remove(record.claim.uid)
    assert not parts.driver.mend(record)
    assert supervisor.states == {}


async def test_what_a_card_was_set_to_for_claims_is_set_again(machine, parts, upkeep, caplog):
    """A reset, another program: the daemon lives, and a further share does not look."""
    await parts.driver.prepare(share(1, mps(machine)))
    await parts.driver.prepare(share(2, mps(machine)))
    parts.hardware.undo(SetComputeMode(machine.uuids[0], ComputeMode.EXCLUSIVE_PROCESS))
    assert machine.compute_mode(0) == 0
    await look(upkeep, parts, 1)
    assert machine.compute_mode(0) == EXCLUSIVE
    assert "was gone, made again" in caplog.text


async def test_a_card_that_does_not_tell_what_it_is_set_to_is_left_to_its_health(
    machine, parts, upkeep, caplog
):
    await parts.driver.prepare(share(1, mps(machine)))
    control.lose(machine.root, 0)
    await look(upkeep, parts, 1)
    assert "made again" not in caplog.text
