"""Who comes next, and how long the one before waits for it."""

import asyncio

import pytest

from kubeletplugin import handover
from kubeletplugin.handover import Handover
from tests.polling import eventually


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "TURN_S", 0.3)
    monkeypatch.setattr(handover, "REGISTER_S", 0.3)


async def test_one_at_a_time_has_the_turn(root):
    first, second = Handover(root), Handover(root)

    assert first.try_take_turn()
    assert not second.try_take_turn()
    waiting = asyncio.create_task(second.take_turn())
    first.release()
    await waiting
    assert not first.try_take_turn()


async def test_giving_ends_when_the_next_one_is_registered(root, monkeypatch):
    monkeypatch.setattr(handover, "TURN_S", 60.0)
    monkeypatch.setattr(handover, "REGISTER_S", 60.0)
    first, second = Handover(root), Handover(root)
    first.try_take_turn()
    first.arrived()
    waiting = asyncio.create_task(second.take_turn())

    giving = asyncio.create_task(first.give())
    await waiting
    assert not giving.done()
    second.arrived()

    await giving


async def test_giving_ends_where_nobody_comes(root):
    first = Handover(root)
    first.try_take_turn()

    await first.give()

    assert Handover(root).try_take_turn()


async def test_giving_ends_where_the_next_one_is_never_registered(root):
    first, second = Handover(root), Handover(root)
    first.try_take_turn()
    giving = asyncio.create_task(first.give())
    await eventually(second.try_take_turn)

    await giving

    assert not first.try_take_turn()


async def test_after_a_wiped_folder_the_faster_one_has_the_turn(root):
    first, second = Handover(root), Handover(root)
    first.try_take_turn()
    assert first.intact()
    (root / "turn.lock").unlink()
    assert not first.intact()
    second.try_take_turn()

    assert not first.retake()


async def test_giving_leaves_no_mark_where_nobody_was_ever_registered(root):
    first, second = Handover(root), Handover(root)
    first.try_take_turn()
    giving = asyncio.create_task(first.give())
    await eventually(second.try_take_turn)
    await giving
    assert not second.known
    second.arrived()
    assert first.known


async def test_who_is_refused_takes_the_mark_away_unless_another_holds_it(root):
    first, second = Handover(root), Handover(root)
    first.arrived()
    second.refused()
    assert first.known
    first.refused()
    assert not second.known
