"""Whole cards, partitions, shares and turns on the same cards, under deaths, failures and
reboots."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from driver.errors import ClaimError, DriverError
from driver.model.ids import ClaimUid
from driver.model.shares import SharingFacts
from tests.apply.cut_world import Crash, Touches, uid
from tests.apply.shared_world import SharedWorld, long_turns, pod, request
from tests.apply.world import Fault, crash, failure
from tests.plan.shared import PODS, V2, V3

SEQUENCES = 10_000
CHUNKS = 5
WORLDS: dict[str, tuple[str, SharingFacts, dict[str, Any]]] = {
    "h100": ("h100-80gb", V2, {}),
    "namespaces": ("h200", V3, {"defaultShares": "4"}),
    "pods": ("h100-80gb", PODS, {"defaultShares": "5"}),
    "equal": ("h100-80gb", V2, {"shareSize": "{memory: 20Gi, computePercent: 25}"}),
    "turns": ("b200", V2, {"timeSlice": "{interval: Short, replicas: 3}"}),
}
TYPES = ("gpu", "mig", "mps", "mps", "mps", "timeslice", "timeslice")
MAKES = {"death": crash, "failure": failure}


def make(name):
    board, facts, rule = WORLDS[name]
    return SharedWorld(board, facts, **rule)


class Story:
    """One random sequence. The world is checked whenever a recovery went through."""

    def __init__(self, world: str, seed: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - reproducible
        self.name = world
        self.world = make(world)
        self.process = self.world.start()
        self.profiles = [each.name for each in self.world.cards.gpus[0].mig_profiles]

    def run(self, steps: int) -> None:
        acts = [self.claim, self.claim, self.claim, self.end, self.end, self.again, self.forge]
        acts += [self.reboot, self.kill]
        acts += [self.come, self.go] if self.name == "pods" else []
        for _ in range(steps):
            self.rng.choice(acts)()
            self.world.check_daemons()
        self.kill()

    def claim(self) -> None:
        """What the scheduler gives must be prepared, unless an accident is in the way."""
        n = self.rng.randrange(12)
        if n in self.world.claims:
            return
        type_ = self.rng.choice(TYPES)
        profile = self.rng.choice(self.profiles) if type_ == "mig" else ""
        names = ["a", "b"] if type_ == "mps" and self.rng.random() < 0.2 else ["a"]
        config = [long_turns("a")] if type_ == "timeslice" and self.rng.random() < 0.3 else []
        wanted = [request(self.rng, type_, name, profile) for name in names]
        if self.world.allocate(n, *wanted, config=config):
            self.prepare(n, may_refuse=len(names) > 1 or type_ == "timeslice")

    def again(self) -> None:
        if self.world.claims:
            n = self.rng.choice(list(self.world.claims))
            self.world.come(n)
            self.prepare(n, may_refuse=True)

    def come(self) -> None:
        """Pods join a prepared claim, of which the kubelet says nothing; upkeep finds them."""
        if not self.world.claims:
            return
        n = self.rng.choice(list(self.world.claims))
        self.world.come(n)
        with self.accidents():
            self.process.limit_pods(self.world.claims[n])

    def go(self) -> None:
        self.world.go(self.rng.randrange(4))

    def forge(self) -> None:
        """An allocation that no sound scheduler makes: refused, or it fits all the same."""
        device = self.rng.choice(self.world.names)
        result = {"driver": "gpu.aliquot.dev", "pool": "node-1", "device": device, "request": "f"}
        if self.rng.random() < 0.8:
            memory = str(self.rng.choice((0, 1, 1 << 30, 1 << 36, 1 << 40)))
            percent = str(self.rng.choice((0, 50, 100, 200)))
            consumed = {"memory": memory, "computePercent": percent, "shares": "1"}
            result |= {"shareID": uid(99), "consumedCapacity": consumed}
        metadata = {"namespace": "team", "name": "forged", "uid": uid(50)}
        allocation = {"devices": {"results": [result]}}
        forged = {"metadata": metadata, "status": {"allocation": allocation}}
        with suppress(DriverError):
            self.process.prepare_claim(forged)
        self.world.check_places()
        self.process.unprepare(50)

    def prepare(self, n: int, *, may_refuse: bool) -> None:
        raw = self.world.claims[n]
        with self.accidents(may_refuse=may_refuse):
            self.process.prepare_claim(raw)

    def end(self, n: int | None = None) -> None:
        """The pod is gone: unprepared first, as the kubelet does, and then free for others."""
        if not self.world.claims:
            return
        n = self.rng.choice(list(self.world.claims)) if n is None else n
        with self.accidents():
            self.world.leaving(n)
            self.process.unprepare(n)
            del self.world.claims[n]

    @contextmanager
    def accidents(self, *, may_refuse: bool = False) -> Iterator[None]:
        """A failure or a death may happen; nothing else but a refusal that is allowed."""
        faulty = self.fault()
        try:
            yield
        except DriverError:
            assert faulty or may_refuse
        except Crash:
            self.kill()
        finally:
            self.process.touches.fault = None

    def fault(self) -> bool:
        make = self.rng.choice((None, None, None, crash, failure))
        touches = self.process.touches
        touches.log.clear()
        touches.fault = make and Fault(self.rng.randint(1, 8), make, self.rng.random() < 0.5)
        return make is not None

    def kill(self) -> None:
        if self.rng.random() < 0.3:
            with suppress(Crash):
                self.world.recover(Touches(Fault(self.rng.randint(1, 5), crash)))
        self.process = self.world.start()
        self.world.recover()
        self.world.check()

    def reboot(self) -> None:
        self.world.cards.reboot()
        self.world.forget_daemons()
        self.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_sequences_keep_journal_hardware_and_files_the_same(world, chunk):
    for n in range(SEQUENCES // (len(WORLDS) * CHUNKS)):
        seed = f"{world}/{chunk}/{n}"
        try:
            Story(world, seed).run(8)
        except Exception as error:
            error.add_note(f"sequence {seed}")
            raise


def two_shares(world):
    rng = random.Random(0)  # noqa: S311 - the numbers do not matter
    wanted = request(rng, "mps", "a")
    wanted["exactly"]["capacity"]["requests"] = {"memory": "20Gi", "computePercent": "25"}
    for n in (1, 9):
        assert world.allocate(n, wanted)
    world.start().prepare_claim(world.claims[9])
    return [world.cards.records[ClaimUid(uid(9))]]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("act", ["prepare", "unprepare"])
def test_every_accident_leaves_all_or_nothing_and_other_shares_alone(world, kind, act):
    for at in range(1, 30):
        for after in (False, True):
            here = make(world)
            bystanders = two_shares(here)
            if act == "unprepare":
                here.start().prepare_claim(here.claims[1])
            touches = Touches(Fault(at, MAKES[kind], after))
            process = here.start(touches)
            with suppress(Crash, DriverError):
                if act == "prepare":
                    process.prepare_claim(here.claims[1])
                else:
                    process.unprepare(1)
            here.recover()
            here.check(bystanders)
            if not touches.struck:
                return
    pytest.fail("it never ends")


def test_a_pod_has_the_sum_of_what_its_claims_give_it():
    world = make("pods")
    (record,) = two_shares(world)
    gpu, size = record.held[0].gpu, 20 << 30
    assert world.cards.limits == {(gpu, pod(1)): size, (gpu, pod(2)): size}
    process = world.start()
    process.prepare_claim(world.claims[1])
    assert world.cards.limits == {(gpu, pod(1)): 2 * size, (gpu, pod(2)): 2 * size}
    world.go(2)
    world.check()
    process.unprepare(9)
    assert world.cards.limits == {(gpu, pod(1)): size}
    world.come(1)
    process.limit_pods(world.claims[1])
    assert world.cards.limits == {(gpu, pod(1)): size, (gpu, pod(2)): size}
    world.check()
    process.unprepare(1)
    assert world.cards.limits == {}
    world.check()


def test_a_claim_whose_pods_are_not_there_is_refused_and_nothing_is_left():
    world = make("pods")
    two_shares(world)
    world.cards.pods.clear()
    world.cards.limits.clear()
    with pytest.raises(ClaimError, match=r"is reserved for pods .*none has a cgroup"):
        world.start().prepare_claim(world.claims[1])
    world.check()
    world.claims[1]["status"]["reservedFor"] = []
    with pytest.raises(ClaimError, match=r"reserved for no pod \(status.reservedFor\)"):
        world.start().prepare_claim(world.claims[1])
    world.check()


def test_pods_that_come_after_a_reboot_are_limited_by_the_next_prepare():
    world = make("pods")
    (record,) = two_shares(world)
    world.cards.reboot()
    world.forget_daemons()
    world.recover()
    assert world.cards.limits == {}
    world.come(9)
    world.start().prepare_claim(world.claims[9])
    assert world.cards.limits == {(record.held[0].gpu, pod(k)): 20 << 30 for k in (1, 2)}
    world.check()


@pytest.mark.parametrize("kind", MAKES)
def test_every_accident_while_a_pod_joins_can_be_mended(kind):
    for at in range(1, 30):
        for after in (False, True):
            here = make("pods")
            two_shares(here)
            here.start().prepare_claim(here.claims[1])
            here.claims[1]["status"]["reservedFor"] += [
                {"resource": "pods", "name": "joins", "uid": pod(3)}
            ]
            here.come(1)
            touches = Touches(Fault(at, MAKES[kind], after))
            process = here.start(touches)
            with suppress(Crash, DriverError):
                process.limit_pods(here.claims[1])
            here.recover()
            here.check()
            here.start().limit_pods(here.claims[1])
            here.check()
            assert sum(name == pod(3) for _, name in here.cards.limits) == 1
            if not touches.struck:
                assert touches.log == ["put", "limit"]
                return
    pytest.fail("it never ends")


def test_a_second_interval_is_refused_and_the_first_stays():
    world = SharedWorld("h100-80gb", V2)
    rng = random.Random(0)  # noqa: S311
    turn = request(rng, "timeslice", "a")
    world.allocate(1, turn, config=[long_turns()])
    world.allocate(2, turn)
    for n in (1, 2):
        world.start().prepare_claim(world.claims[n])
    world.start().unprepare(1)
    world.check()
    short = long_turns()
    short["opaque"]["parameters"] = short["opaque"]["parameters"] | {"interval": "Short"}
    world.allocate(3, turn, config=[short])
    with pytest.raises(ClaimError, match="interval SHORT is asked for"):
        world.start().prepare_claim(world.claims[3])
    world.check()
