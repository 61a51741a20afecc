"""Partitions come and go under deaths, failures, reboots and interference."""

import itertools
import random
from contextlib import suppress

import pytest

from driver.errors import DriverError
from driver.model.ids import ClaimUid, GpuUuid
from driver.model.mig import Placement
from tests.apply.cut_world import Crash, CutWorld, Touches, uid
from tests.apply.world import Fault, crash, failure

BOARDS = ["a30", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200"]
SEQUENCES = 10_000
CHUNKS = 5

MAKES = {"death": crash, "failure": failure}


def profiles(board):
    return [profile.name for profile in CutWorld(board, 1).cards.gpus[0].mig_profiles]


PAIRS = [(board, profile) for board in BOARDS for profile in profiles(board)]


def moments():
    """Every touch, and just before or just after it; whoever consumes it stops."""
    return ((at, after) for at in itertools.count(1) for after in (False, True))


def device(world, profile, card=0):
    gpu = world.cards.gpus[card]
    node = world.start().node
    return next(
        name
        for name, each in node.devices.items()
        if each.gpu == gpu and getattr(each, "profile", None) and each.profile.name == profile
    )


def bystander_world(board, profile):
    """Another claim has a partition of the same card, where there is room beside this one."""
    world = CutWorld(board, 2)
    world.start().prepare(9, device(world, profile, 1))
    return world, [world.cards.records[ClaimUid(uid(9))]]


@pytest.mark.parametrize(("board", "profile"), PAIRS)
@pytest.mark.parametrize("kind", MAKES)
def test_every_accident_of_a_prepare_leaves_all_or_nothing(board, profile, kind):
    for at, after in moments():
        world, bystanders = bystander_world(board, profile)
        touches = Touches(Fault(at, MAKES[kind], after))
        name = device(world, profile)
        with suppress(Crash, DriverError):
            world.start(touches).prepare(1, name)
        world.recover()
        world.check(bystanders)
        world.start().prepare(1, name)  # the kubelet asks again
        world.check(bystanders)
        if not touches.struck:
            assert at > 4
            break


@pytest.mark.parametrize(("board", "profile"), PAIRS)
@pytest.mark.parametrize("kind", MAKES)
def test_every_accident_of_an_unprepare_can_be_mended(board, profile, kind):
    for at, after in moments():
        world, bystanders = bystander_world(board, profile)
        world.start().prepare(1, device(world, profile))
        touches = Touches(Fault(at, MAKES[kind], after))
        with suppress(Crash, DriverError):
            world.start(touches).unprepare(1)
        world.recover()
        world.check(bystanders)
        world.start().unprepare(1)
        world.check(bystanders)
        assert ClaimUid(uid(1)) not in world.cards.records
        if not touches.struck:
            assert at > 3
            break


@pytest.mark.parametrize("board", BOARDS)
def test_every_accident_of_a_recovery_is_mended_by_the_next(board):
    """Of a half-made partition, a whole one and one that a reboot took."""
    profile = profiles(board)[0]
    for begun, reboot in itertools.product(range(1, 6), [False, True]):
        for at, after in moments():
            world, bystanders = bystander_world(board, profile)
            with suppress(Crash):
                world.start(Touches(Fault(begun, crash))).prepare(1, device(world, profile))
            if reboot:
                world.cards.reboot()
            second = Touches(Fault(at, crash, after))
            with suppress(Crash):
                world.recover(second)
            world.recover()
            world.check(bystanders)
            if not second.struck:
                break


@pytest.mark.parametrize(("board", "profile"), PAIRS)
def test_a_reboot_makes_every_partition_again(board, profile):
    world, bystanders = bystander_world(board, profile)
    world.start().prepare(1, device(world, profile))
    world.cards.reboot()
    world.recover()
    world.check(bystanders)


def test_a_partition_that_somebody_destroyed_is_made_again_when_it_is_asked_for():
    world = CutWorld("h100-80gb")
    world.start().prepare(1, device(world, "3g.40gb"))
    world.cards.there[world.cards.gpus[0].uuid].clear()
    world.start().prepare(1, device(world, "3g.40gb"))
    world.check()


# Random --------------------------------------------------------------------------------------


class Story:
    """One random sequence. The world is checked whenever a recovery went through."""

    def __init__(self, board: str, seed: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - reproducible
        self.world = CutWorld(board)
        self.process = self.world.start()
        self.known: list[tuple[GpuUuid, Placement]] = []

    def run(self, steps: int) -> None:
        acts = (self.prepare, self.prepare, self.prepare, self.unprepare, self.unprepare)
        for _ in range(steps):
            self.rng.choice((*acts, self.reboot, self.kill, self.interfere, self.destroy))()
        self.process = self.world.start()
        self.world.recover()
        self.settle()

    def prepare(self) -> None:
        count = self.rng.choice((1, 1, 1, 2, 3))
        names = self.rng.sample(self.world.names, count)
        self.with_fault(lambda: self.process.prepare(self.rng.randrange(8), *names))

    def unprepare(self) -> None:
        self.with_fault(lambda: self.process.unprepare(self.rng.randrange(8)))

    def with_fault(self, act) -> None:
        """Sometimes the process dies, or something fails, on the way."""
        make = self.rng.choice((None, None, crash, failure))
        touches = self.process.touches
        touches.log.clear()
        touches.fault = make and Fault(self.rng.randint(1, 8), make, self.rng.random() < 0.5)
        try:
            act()
        except DriverError:
            pass
        except Crash:
            self.kill()
        finally:
            touches.fault = None

    def kill(self) -> None:
        """A new process, which may die of its recovery too."""
        if self.rng.random() < 0.3:
            with suppress(Crash):
                self.world.recover(Touches(Fault(self.rng.randint(1, 5), crash)))
        self.process = self.world.start()
        self.world.recover()
        self.settle()

    def reboot(self) -> None:
        self.world.cards.reboot()
        self.known = []
        self.kill()

    def interfere(self) -> None:
        gpu = self.rng.choice(self.world.cards.gpus)
        kind = self.rng.choice(gpu.mig_profiles)
        place = Placement(self.rng.choice(kind.starts), kind.size)
        self.world.make_by_hand(gpu.uuid, kind.id, place)
        self.known = self.world.strange()

    def destroy(self) -> None:
        """Somebody destroys a partition under our feet; a restart makes it again."""
        there = self.rng.choice(list(self.world.cards.there.values()))
        ours = [each for each in there if not each.strange]
        if ours:
            there.remove(self.rng.choice(ours))
            self.kill()

    def settle(self) -> None:
        self.world.check()
        assert self.world.strange() == self.known  # never touched


@pytest.mark.timeout(600)
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_sequences_keep_journal_hardware_and_files_the_same(board, chunk):
    each = -(-SEQUENCES // (len(BOARDS) * CHUNKS))
    for n in range(each):
        seed = f"{board}/{chunk}/{n}"
        try:
            Story(board, seed).run(8)
        except Exception as error:
            error.add_note(f"sequence {seed}")
            raise
