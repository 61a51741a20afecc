from dataclasses import replace

import pytest

from driver.apply.executor import UNKNOWN_BOOT, Outcome, needs_redo
from driver.errors import HardwareError, StateError
from driver.model.claims import ClaimState
from tests.apply.world import Fault, World, failure
from tests.state.builders import BOOT, NEXT_BOOT, exclusive, planned, record, uid
from tests.state.disks import fill, tiny_disk

CLAIM = record(1, 1, 2, steps=True)
PLAIN = record(1, 1, 2)


class Stuck:
    """A machine on which nothing works."""

    def do(self, step):
        raise HardwareError("do", "in use")

    def undo(self, step):
        raise HardwareError("undo", "still in use")

    def present(self, step):
        raise HardwareError("present", "GPU is lost")

    def has_cgroup(self, pod):
        return False


def test_a_claim_without_steps_is_one_record(tmp_path):
    world = World(tmp_path)
    started = replace(PLAIN, state=ClaimState.STARTED)
    done = world.start().executor.apply(started)
    assert done.state is ClaimState.COMPLETED
    world.check_claim(PLAIN, prepared=True)


def test_a_claim_whose_steps_stand_for_others_changes_nothing_and_takes_nothing_back(tmp_path):
    beside = record(7, 1, 2, steps=True)
    world = World(tmp_path, beside)
    process = world.start()
    done = process.executor.apply(CLAIM)
    assert process.touches.log == ["put"]
    assert done == CLAIM
    world.project(done)
    world.check_claim(CLAIM, prepared=True)
    world.start().executor.release(beside)
    assert world.effects == set(CLAIM.steps)  # now they are its own to undo
    world.start().executor.release(CLAIM)
    assert world.effects == set()


def test_begin_puts_the_intent_on_disk_before_anything_is_changed(tmp_path):
    world = World(tmp_path)
    begun = world.start().executor.begin(planned(CLAIM))
    assert begun.state is ClaimState.STARTED
    assert world.records() == {uid(1): begun}
    assert world.effects == set()
    world.start().executor.carry_out(begun)
    world.check_claim(CLAIM, prepared=True)


def test_a_bug_in_a_step_rolls_back_like_a_fault_of_the_card(tmp_path):
    world = World(tmp_path)
    process = world.start(Fault(3, lambda: ZeroDivisionError("bug")))
    with pytest.raises(ZeroDivisionError):
        process.executor.apply(planned(CLAIM))
    world.check_claim(CLAIM, prepared=False)


def test_a_roll_back_that_fails_keeps_the_intent_and_notes_it_on_the_error(tmp_path):
    world = World(tmp_path)
    process = world.start()
    executor = replace(process.executor, node=Stuck())
    with pytest.raises(HardwareError, match=r"^do: in use") as caught:
        executor.apply(planned(CLAIM))
    assert caught.value.__notes__ == ["the roll-back is not finished: undo: still in use"]
    assert world.records() == {uid(1): replace(CLAIM, state=ClaimState.STARTED)}
    report = world.start().recover()
    assert report[uid(1)].outcome is Outcome.ROLLED_BACK
    world.check_claim(CLAIM, prepared=False)


def test_a_disk_that_fills_up_before_the_second_record_rolls_back(tmp_path):
    with tiny_disk(tmp_path / "disk") as disk:
        world = World(disk, record(7, 1, steps=True))
        process = world.start()

        class Filling(Stuck):
            def do(self, step):
                world.effects.add(step)
                fill(disk)

            def undo(self, step):
                world.effects.discard(step)

        with pytest.raises(StateError, match=r"was not written: .*ENOSPC") as caught:
            replace(process.executor, node=Filling()).apply(planned(CLAIM))
        assert not hasattr(caught.value, "__notes__")
        world.check_claim(CLAIM, prepared=False)


def test_a_full_disk_does_not_keep_a_card_from_being_released(tmp_path):
    with tiny_disk(tmp_path / "disk") as disk:
        world = World(disk, record(7, 1, steps=True))
        world.prepare(CLAIM)
        fill(disk)
        world.start().executor.release(CLAIM)
        world.check_claim(CLAIM, prepared=False)


def test_a_failed_release_that_cannot_be_marked_notes_it_on_the_error(tmp_path):
    with tiny_disk(tmp_path / "disk") as disk:
        world = World(disk)
        world.prepare(CLAIM)

        class Filling(Stuck):
            def undo(self, step):
                fill(disk)
                super().undo(step)

        executor = replace(world.start().executor, node=Filling())
        with pytest.raises(HardwareError, match=r"^undo: still in use") as caught:
            executor.release(CLAIM)
        (note,) = caught.value.__notes__
        assert note.startswith("its record is not marked: ")
        assert "ENOSPC" in note
        assert world.records() == {uid(1): CLAIM}


def test_a_release_that_cannot_forget_a_claim_without_steps_keeps_it_whole(tmp_path):
    world = World(tmp_path)
    world.prepare(PLAIN)
    process = world.start(Fault(2, failure, after=True))
    with pytest.raises(HardwareError):
        process.executor.release(PLAIN)
    world.check_claim(PLAIN, prepared=True)
    assert process.journal.get(uid(1)) == PLAIN


def test_recovery_reports_every_claim_and_touches_only_what_needs_it(tmp_path):
    world = World(tmp_path)
    for n, steps in [(1, True), (2, True), (3, False)]:
        world.prepare(record(n, n, steps=steps))
    world.start().executor.begin(planned(record(4, 4, steps=True)))
    world.effects.discard(exclusive(2))
    inodes = {path.name: path.stat().st_ino for path in world.claims.iterdir()}
    report = world.start().recover()
    assert {n: report[uid(n)].outcome for n in (1, 2, 3, 4)} == {
        1: Outcome.INTACT,
        2: Outcome.REDONE,
        3: Outcome.INTACT,
        4: Outcome.ROLLED_BACK,
    }
    for n in (1, 3):
        name = f"{uid(n)}.json"
        assert (world.claims / name).stat().st_ino == inodes[name]
    world.check()
    assert str(report[uid(1)]) == f"claim default/claim:{uid(1)} intact"


def test_after_a_reboot_steps_are_redone_even_where_they_seem_present(tmp_path):
    world = World(tmp_path)
    world.prepare(CLAIM)
    process = world.start()
    assert process.recover(NEXT_BOOT)[uid(1)].outcome is Outcome.REDONE
    assert process.touches.log == ["do", "do", "put"]
    assert process.recover(NEXT_BOOT)[uid(1)].outcome is Outcome.INTACT


def test_one_broken_card_is_reported_and_the_others_are_served(tmp_path):
    world = World(tmp_path, record(7, 3, steps=True))
    world.prepare(CLAIM)
    process = world.start()
    real = process.executor.node

    class OneBroken(Stuck):
        def do(self, step):
            if step == exclusive(2):
                raise HardwareError("do", "GPU is lost")
            real.do(step)

    executor = replace(process.executor, node=OneBroken())
    report = executor.recover(process.journal.all(), NEXT_BOOT)
    broken, served = sorted(report, key=lambda each: each.claim.uid)
    assert (broken.outcome, served.outcome) == (Outcome.UNREPAIRED, Outcome.REDONE)
    assert str(broken) == f"claim default/claim:{uid(1)} unrepaired: do: GPU is lost"
    kept = process.journal.get(uid(1))
    assert kept == CLAIM
    assert needs_redo(kept, NEXT_BOOT)
    assert process.executor.redo(kept, NEXT_BOOT).boot_id == NEXT_BOOT


def test_a_claim_of_this_boot_that_cannot_be_repaired_is_redone_at_its_next_prepare(tmp_path):
    world = World(tmp_path)
    world.prepare(CLAIM)
    world.effects.clear()
    process = world.start()
    executor = replace(process.executor, node=Stuck())
    (report,) = executor.recover(process.journal.all(), BOOT)
    assert report.outcome is Outcome.UNREPAIRED
    kept = world.records()[uid(1)]
    assert kept == replace(CLAIM, boot_id=UNKNOWN_BOOT)
    assert needs_redo(kept, BOOT)
    process = world.start()
    done = process.executor.redo(kept, BOOT)
    assert not needs_redo(done, BOOT)
    world.check_claim(CLAIM, prepared=True)


def test_a_claim_that_cannot_be_rolled_back_is_reported_and_kept(tmp_path):
    world = World(tmp_path)
    world.start().executor.begin(planned(CLAIM))
    process = world.start()
    executor = replace(process.executor, node=Stuck())
    (report,) = executor.recover(process.journal.all(), BOOT)
    assert report.outcome is Outcome.UNREPAIRED
    assert world.records()[uid(1)].state is ClaimState.STARTED


def test_a_claim_without_steps_needs_nothing_after_a_reboot(tmp_path):
    world = World(tmp_path)
    world.prepare(PLAIN)
    assert not needs_redo(PLAIN, NEXT_BOOT)
    process = world.start()
    assert process.recover(NEXT_BOOT)[uid(1)].outcome is Outcome.INTACT
    assert process.touches.log == []


def test_a_refused_first_record_that_reached_the_disk_all_the_same_is_taken_back(tmp_path):
    world = World(tmp_path)
    for claim in (PLAIN, CLAIM):
        process = world.start(Fault(1, lambda: StateError("folder not synced"), after=True))
        with pytest.raises(StateError, match="not synced"):
            process.executor.apply(planned(claim))
        world.check_claim(claim, prepared=False)
