"""Failure and death at every touch of apply, release and recovery, and again at every touch of
the recovery that follows. Whatever happened, a claim ends up wholly there or not at all."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from driver.apply.executor import Outcome
from driver.errors import DriverError
from driver.model.claims import ClaimState
from tests.apply.world import Crash, Fault, Process, World, crash, failure
from tests.state.builders import BOOT, NEXT_BOOT, exclusive, planned, record, uid

CLAIM = record(1, 1, 2, steps=True)
PLAIN = record(1, 1, 2)
# One elsewhere, one that needs the same effect on the same card, one without steps.
BYSTANDERS = (record(7, 3, steps=True), record(8, 1, steps=True), record(9, 2))

FAULTS = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
KINDS = pytest.mark.parametrize("make", [crash, failure], ids=["death", "failure"])


def faults(make, after) -> Iterator[Fault]:
    """A fault for each touch there is; whoever consumes it stops when one did not strike."""
    return (Fault(at, make, after) for at in itertools.count(1))


def run(act: Callable[[], object]) -> BaseException | None:
    try:
        act()
    except (Crash, DriverError) as error:
        return error
    return None


def after_a_second_accident(folder, begin: Callable[[World], object]) -> Iterator[World]:
    """``begin`` in a world of its own for each accident of the recovery that follows, recovered
    by a third process in the end. Ends with a recovery that met no accident at all."""
    for make, after in itertools.product([crash, failure], [False, True]):
        for fault in faults(make, after):
            world = World(folder / f"{make.__name__}-{after}-{fault.at}", *BYSTANDERS)
            begin(world)
            second = world.start(fault)
            with suppress(Crash):
                second.recover()
            report = world.start().recover()
            assert Outcome.UNREPAIRED not in {each.outcome for each in report.values()}
            yield world
            if not second.touches.struck:
                break


def die_or_fail(act: Callable[[Process], object], fault: Fault) -> Callable[[World], object]:
    return lambda world: run(lambda: act(world.start(fault)))


def apply_it(process: Process) -> object:
    return process.executor.apply(planned(CLAIM))


def release_it(process: Process) -> None:
    found = process.journal.get(uid(1))
    if found is not None:
        process.executor.release(found)


def prepared_then(act: Callable[[World], object]) -> Callable[[World], object]:
    def begin(world: World) -> None:
        world.prepare(CLAIM)
        act(world)

    return begin


def test_what_is_touched_and_in_which_order(tmp_path):
    """The enumerations below are over these; a new touch changes this list."""
    world = World(tmp_path, *BYSTANDERS)
    process = world.start()
    process.executor.apply(planned(CLAIM))
    assert process.touches.log == ["put", "do", "do", "put"]
    process = world.start()
    process.recover()
    assert process.touches.log == ["present"] * 4
    process = world.start()
    release_it(process)
    # Card 1 keeps its mode: claim 8 needs it too.
    assert process.touches.log == ["cdi remove", "undo", "remove"]
    process = world.start()
    process.executor.apply(planned(PLAIN))
    assert process.touches.log == ["put"]


@KINDS
@FAULTS
def test_apply_struck_anywhere_leaves_all_or_nothing_at_once_or_after_recovery(
    tmp_path, make, after
):
    struck = 0
    for fault in faults(make, after):
        world = World(tmp_path / str(fault.at), *BYSTANDERS)
        process = world.start(fault)
        error = run(lambda: process.executor.apply(planned(CLAIM)))  # noqa: B023 - run at once
        assert (error is not None) == process.touches.struck
        if error is None:
            world.check_claim(CLAIM, prepared=True)
            break
        struck += 1
        if make is failure:
            world.check_claim(CLAIM, prepared=False)
        world.start().recover()
        all_is_done = make is crash and after and fault.at == 4
        world.check_claim(CLAIM, prepared=all_is_done)
    assert struck == 4


@KINDS
@FAULTS
@pytest.mark.parametrize("at", range(1, 5))
def test_apply_struck_anywhere_and_recovery_again_leaves_all_or_nothing(tmp_path, at, make, after):
    all_is_done = make is crash and after and at == 4
    runs = 0
    for world in after_a_second_accident(tmp_path, die_or_fail(apply_it, Fault(at, make, after))):
        world.check_claim(CLAIM, prepared=all_is_done)
        runs += 1
    looks_at_bystanders, no_accident = 2, 1
    assert runs >= 4 * (looks_at_bystanders + no_accident)


@KINDS
@FAULTS
def test_a_claim_without_steps_struck_anywhere_leaves_all_or_nothing(tmp_path, make, after):
    struck = 0
    for fault in faults(make, after):
        world = World(tmp_path / str(fault.at), *BYSTANDERS)
        error = run(lambda: world.start(fault).executor.apply(planned(PLAIN)))  # noqa: B023 - run at once
        world.check_claim(PLAIN, prepared=error is None or (make is crash and after))
        if error is None:
            break
        struck += 1
    assert struck == 1


@KINDS
@FAULTS
def test_release_struck_anywhere_and_recovery_again_leaves_all_or_nothing(tmp_path, make, after):
    struck = 0
    for fault in faults(make, after):
        reached = False
        begin = prepared_then(die_or_fail(release_it, fault))
        for world in after_a_second_accident(tmp_path / str(fault.at), begin):
            there = uid(1) in world.records()
            world.check_claim(CLAIM, prepared=there)
            release_it(world.start())  # the kubelet asks again
            world.check_claim(CLAIM, prepared=False)
            reached = reached or there
        if fault.at > 3:
            assert not reached
            break
        struck += 1
    assert struck == 3


@FAULTS
@pytest.mark.parametrize("at", [2, 3])
def test_a_failed_release_says_so_at_once_and_the_next_one_finishes(tmp_path, at, after):
    world = World(tmp_path, *BYSTANDERS)
    world.prepare(CLAIM)
    process = world.start(Fault(at, failure, after))
    assert run(lambda: release_it(process)) is not None
    left = process.journal.get(uid(1))
    assert left is not None
    assert left.state is ClaimState.STARTED
    assert uid(1) not in world.cdi_files()
    process.executor.release(left)
    world.check_claim(CLAIM, prepared=False)


@KINDS
@FAULTS
def test_recovery_after_a_reboot_struck_anywhere_is_finished_by_the_next(tmp_path, make, after):
    struck = 0
    for fault in faults(make, after):
        world = World(tmp_path / str(fault.at), *BYSTANDERS)
        world.prepare(CLAIM)
        world.effects.clear()
        second = world.start(fault)
        report = None
        with suppress(Crash):
            report = second.recover(NEXT_BOOT)
        if make is failure:
            assert report is not None
            broken = {r.outcome for r in report.values()} & {Outcome.UNREPAIRED}
            assert bool(broken) == second.touches.struck
            assert [r.outcome for r in report.values()].count(Outcome.UNREPAIRED) <= 1
        world.start().recover(NEXT_BOOT)
        assert world.effects == {exclusive(n) for n in (1, 2, 3)}
        boots = {n: world.records()[uid(n)].boot_id for n in (1, 7, 8, 9)}
        assert boots == {1: NEXT_BOOT, 7: NEXT_BOOT, 8: NEXT_BOOT, 9: BOOT}
        assert {r.state for r in world.records().values()} == {ClaimState.COMPLETED}
        if not second.touches.struck:
            break
        struck += 1
    assert struck == len(["do", "do", "put"]) + 2 * len(["do", "put"])
