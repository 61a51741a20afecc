"""Following the MPS supervisor."""

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from driver import mps_watch
from driver.hw.mps import MpsCards
from driver.mps_watch import MpsWatch
from mps.protocol import CardSpec
from tests.hw.supervisor import INFO, FakeSupervisor
from tests.polling import eventually

GPU = "GPU-00000000-0000-4000-8000-000000000000"


class Polled(FakeSupervisor):
    """Waits as the real one does."""

    def changes(self, after, wait_s):
        until = time.monotonic() + wait_s
        while self.revision == after and time.monotonic() < until and not self.away:
            time.sleep(0.005)
        return super().changes(after, wait_s)


@pytest.fixture
def supervisor(monkeypatch):
    monkeypatch.setattr(mps_watch, "WAIT_S", 0.2)
    monkeypatch.setattr(mps_watch, "RETRY_S", 0.02)
    return Polled()


@pytest.fixture
def seen():
    return []


@asynccontextmanager
async def following(supervisor, seen):
    async def take(one):
        seen.append(one)

    watch = MpsWatch(MpsCards(supervisor), take)
    task = asyncio.create_task(watch.listen())
    try:
        yield watch, task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ZeroDivisionError):
            await task


async def test_what_changes_is_told_once(supervisor, seen):
    async with following(supervisor, seen):
        await eventually(lambda: seen)
        assert (seen[0].info, seen[0].problem) == (INFO, "")
        supervisor.ensure(CardSpec(GPU, None, 100, 2))
        await eventually(lambda: seen[-1].cards)
        supervisor.die(GPU)
        await eventually(lambda: not seen[-1].cards[GPU].running)
        count = len(seen)
        calls = supervisor.calls.count("changes")
        await eventually(lambda: supervisor.calls.count("changes") > calls + 1)
        assert len(seen) == count


async def test_a_supervisor_that_goes_and_comes_is_told(supervisor, seen, caplog):
    caplog.set_level("INFO")
    async with following(supervisor, seen):
        await eventually(lambda: seen)
        supervisor.away = "nobody listens"
        await eventually(lambda: seen[-1].problem)
        assert "nobody listens" in seen[-1].problem
        supervisor.away = ""
        await eventually(lambda: not seen[-1].problem)
    assert caplog.text.count("nobody listens") == 1
    assert "the supervisor answers" in caplog.text


async def test_a_program_that_is_installed_later_is_found(supervisor, seen):
    supervisor.told = replace(INFO, protocols=(), failure="there is no control program")
    async with following(supervisor, seen):
        await eventually(lambda: seen and seen[-1].problem == "there is no control program")
        supervisor.told = INFO
        await eventually(lambda: seen[-1].problem == "")


async def test_a_bug_ends_the_task(supervisor, seen, monkeypatch):
    monkeypatch.setattr(supervisor, "info", lambda: 1 / 0)
    async with following(supervisor, seen) as (_, task):
        await eventually(task.done)
        assert isinstance(task.exception(), ZeroDivisionError)


async def test_without_a_socket_there_is_nothing_to_follow(seen):
    async with following(None, seen) as (watch, task):
        await watch.look()
        await asyncio.sleep(0)
        assert not task.done()
        assert seen == []


async def test_the_first_look_waits_only_so_long(supervisor, seen, monkeypatch):
    monkeypatch.setattr(mps_watch, "FIRST_S", 0.05)
    release: list[bool] = []
    monkeypatch.setattr(
        supervisor, "info", lambda: next(iter([]), None) if release else _hang(release)
    )

    async def take(one):
        seen.append(one)

    await MpsWatch(MpsCards(supervisor), take).look()
    release.append(True)
    assert "does not answer within 0.05 s" in seen[0].problem


def _hang(release):
    while not release:
        time.sleep(0.005)
    return INFO


async def test_the_first_look_finds_what_is_there(supervisor, seen):
    async def take(one):
        seen.append(one)

    supervisor.away = "nobody listens"
    watch = MpsWatch(MpsCards(supervisor), take)
    await watch.look()
    supervisor.away = ""
    await watch.look()
    assert [bool(one.problem) for one in seen] == [True, False]
