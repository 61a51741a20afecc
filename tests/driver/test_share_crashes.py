"""The process dies at every effect of a share's prepare and unprepare, and again during the
recovery that follows: with real journal and files, simulated cards, and a real MPS supervisor on a
stand-in of the control program. In the end a claim is there wholly or not at all."""

import itertools
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver.apply.executor import Executor
from driver.hw.card import Cards
from driver.model.claims import ClaimState
from driver.model.steps import LimitPod, Step
from driver.plugin import GpuDriver
from driver.sim import control
from tests.apply.world import Crash, Fault, TouchedCdi, TouchedJournal, Touches, crash
from tests.driver.machine import EXCLUSIVE, SHARED, Parts, ref, share
from tests.mps.rig import Rig


@dataclass
class TouchedCards:
    cards: Cards
    touches: Touches

    def do(self, step: Step) -> None:
        self.touches.touch("do", lambda: self.cards.do(step))

    def undo(self, step: Step) -> None:
        self.touches.touch("undo", lambda: self.cards.undo(step))

    def present(self, step: Step) -> bool:
        return self.touches.touch("present", lambda: self.cards.present(step))

    def has_cgroup(self, pod: str) -> bool:
        return self.cards.has_cgroup(pod)


class World:
    """The node over many lives of the driver; its supervisor lives on."""

    def __init__(self, machine, rig: Rig) -> None:
        self.machine = machine
        self.rig = rig
        machine.supervisor = rig.client

    @property
    def device(self) -> str:
        return f"{self.machine.device(0)}-mps"

    def start(self, touches: Touches | None = None) -> Parts:
        parts: Parts = self.machine.start(SHARED)
        parts.look_at_supervisor()
        if touches is not None:
            parts.executor = Executor(
                TouchedCards(parts.hardware, touches),
                TouchedJournal(parts.journal, touches),
                TouchedCdi(parts.cdi, touches),
            )
            parts.driver = GpuDriver(
                parts.identity, parts.cards, parts.journal, parts.cdi, parts.executor, parts.lanes
            )
        return parts

    def recover(self, touches: Touches | None = None) -> Parts:
        parts = self.start(touches)
        parts.driver.recover()
        return parts

    def check(self, parts: Parts) -> None:
        """Journal, cards, daemons and files say the same."""
        records = parts.journal.all()
        assert all(record.state is ClaimState.COMPLETED for record in records)
        steps = [step for record in records for step in record.steps]
        assert all(map(parts.executor.stands, records))
        shared = bool(records)
        assert self.machine.compute_mode(0) == (EXCLUSIVE if shared else 0)
        cards = self.rig.client.cards()
        assert [state.spec.gpu for state in cards] == ([self.machine.uuids[0]] if shared else [])
        gpus = [state.spec.gpu for state in cards]
        there = [path.name for path in self.machine.cgroups.rglob("*pod0*")]
        limits: dict[str, int] = {}
        for step in steps:
            if isinstance(step, LimitPod):
                (name,) = (each for each in there if step.pod.replace("-", "_") in each)
                limits[name] = limits.get(name, 0) + step.memory
        assert self.machine.pod_limits() == limits
        spaces = {each.name for gpu in gpus for each in self.rig.client.namespaces(gpu)}
        wanted = {held.share.namespace for record in records for held in record.held if held.share}
        assert spaces == wanted - {None}
        assert {path.name for path in self.machine.cdi.glob("*.json")} == {
            self.machine.cdi_file(int(record.claim.uid[:8])).name for record in records
        }


@pytest.fixture(params=["580", "615", "615 with cgroup v2"])
def world(request, machine):
    branch, _, cgroup = request.param.partition(" ")
    if cgroup:
        for n in (1, 9):
            machine.start_pod(n)
    root = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))
    control.set_driver_version(machine.root, f"{branch}.71.09")
    rig = Rig(root, branch)
    with rig.process():
        yield World(machine, rig)
    rig.end()
    shutil.rmtree(root)


def faults() -> Iterable[Fault]:
    """Just before and just after each touch; who consumes it stops."""
    return (Fault(at, crash, after) for at in itertools.count(1) for after in (False, True))


@pytest.mark.timeout(300)
async def test_every_accident_of_a_first_share_leaves_all_or_nothing(world):
    for fault in faults():
        touches = Touches(fault)
        parts = world.start(touches)
        with suppress(Crash):
            await parts.driver.prepare(share(1, world.device))
        parts = world.recover()
        world.check(parts)
        await parts.driver.prepare(share(1, world.device))  # the kubelet asks again
        world.check(parts)
        await parts.driver.unprepare(ref(1))
        world.check(parts)
        if not touches.struck:
            assert touches.log[:3] == ["put", "do", "do"]
            break


@pytest.mark.timeout(300)
async def test_every_accident_of_the_last_unprepare_can_be_mended(world):
    for fault in faults():
        parts = world.start()
        await parts.driver.prepare(share(1, world.device))
        touches = Touches(fault)
        with suppress(Crash):
            await world.start(touches).driver.unprepare(ref(1))
        parts = world.recover()
        world.check(parts)
        await parts.driver.unprepare(ref(1))
        world.check(parts)
        assert parts.record(1) is None
        if not touches.struck:
            assert touches.log[0] == "cdi remove"
            break


@pytest.mark.timeout(300)
async def test_accidents_beside_another_share_leave_that_one_alone(world):
    parts = world.start()
    await parts.driver.prepare(share(9, world.device))
    (before,) = world.rig.client.cards()
    for fault in faults():
        touches = Touches(fault)
        with suppress(Crash):
            await world.start(touches).driver.prepare(share(1, world.device))
        second = Touches(Fault(fault.at, crash, fault.after))
        with suppress(Crash):
            world.recover(second)
        parts = world.recover()
        world.check(parts)
        await parts.driver.unprepare(ref(1))
        world.check(parts)
        assert world.rig.client.cards() == (before,)  # the same process, never restarted
        if not touches.struck:
            break


async def test_a_kill_while_the_daemon_starts_leaves_nothing_that_lasts(world):
    """The supervisor finishes what was asked of it; who asked is gone."""
    world.rig.knobs(slow_start_s=0.5)
    touches = Touches(Fault(3, crash, after=True))
    with suppress(Crash):
        await world.start(touches).driver.prepare(share(1, world.device))
    parts = world.recover()
    world.check(parts)
    assert parts.journal.all() == ()
    assert world.rig.daemons() == []
