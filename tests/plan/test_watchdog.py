"""Claims that use more than they have: whom it concerns, and when it is said."""

from collections.abc import Iterable

import pytest

from driver.model.claims import AllocatedClaim, Allocation, ClaimState, Held, Record
from driver.model.ids import ClaimUid, DeviceName, GpuUuid, RequestName
from driver.model.shares import Limits, Share
from driver.model.units import Bytes
from driver.model.usage import ProcessUse
from driver.plan.watchdog import (
    PATIENCE,
    Allowance,
    Excess,
    Watched,
    allowances,
    excesses,
    forget,
    judged,
    look,
)

GIB = 1 << 30
CARD, OTHER = GpuUuid("GPU-1"), GpuUuid("GPU-2")


def claim(name: str) -> AllocatedClaim:
    return AllocatedClaim(ClaimUid(f"uid-{name}"), "team", name, ())


def allowance(name: str, gib: int | None, percent: int | None = None, gpu: GpuUuid = CARD):
    memory = None if gib is None else Bytes(gib * GIB)
    return Allowance(claim(name), gpu, memory, percent)


def use(pod: str | None, gib: float | None, percent: int | None = 0, pid: int = 7, name="app"):
    memory = None if gib is None else Bytes(int(gib * GIB))
    return ProcessUse(pid, memory, percent, True, pod, name)


def pods(**names: str) -> dict[ClaimUid, frozenset[str]]:
    """``a="p q"``: claim a is used by the pods p and q."""
    return {ClaimUid(f"uid-{name}"): frozenset(text.split()) for name, text in names.items()}


def over(allowances: Iterable[Allowance], uses: Iterable[ProcessUse], **names: str) -> list[str]:
    return [each.claim.name for each in excesses(allowances, {CARD: uses}, pods(**names))]


def test_what_a_claim_has_it_may_use():
    there = [allowance("a", 14, 25), allowance("b", 10)]
    assert over(there, [use("p", 14, 25), use("q", 10, 100)], a="p", b="q") == []


def test_the_processes_of_a_claim_count_together():
    there = [allowance("a", 14, 25), allowance("b", 10, 50)]
    uses = [use("p", 8, pid=1), use("p", 7, pid=2), use("q", 10)]
    (found,) = excesses(there, {CARD: uses}, pods(a="p", b="q"))
    assert (found.claim, found.gpu, found.pods) == (claim("a"), CARD, ("p",))
    assert found.text == ("uses 15360Mi of memory, 14336Mi was given: processes app (1), app (2)")


@pytest.mark.parametrize(("percent", "told"), [(30, []), (31, ["a"])])
def test_compute_may_be_a_little_more(percent, told):
    assert over([allowance("a", 14, 25)], [use("p", 1, percent)], a="p") == told


def test_both_are_told_at_once():
    (found,) = excesses([allowance("a", 1, 25)], {CARD: [use("p", 2, 90)]}, pods(a="p"))
    assert "2048Mi of memory, 1024Mi was given and 90 % of the multiprocessors, 25 %" in found.text


def test_no_limit_is_never_exceeded_and_unknown_use_is_no_use():
    there = [allowance("a", None, None), allowance("b", 1, 1)]
    assert over(there, [use("p", 79, 100), use("q", None, None)], a="p", b="q") == []


def test_a_claim_that_several_pods_use_has_their_sum():
    assert over([allowance("a", 10)], [use("p", 6), use("q", 6)], a="p q") == ["a"]


def test_claims_of_one_pod_are_judged_together():
    there = [allowance("a", 10), allowance("b", 5), allowance("c", 1)]
    uses = [use("p", 14)]
    assert over(there, uses, a="p", b="p", c="q") == []
    found = excesses(there, {CARD: [use("p", 16)]}, pods(a="p", b="p", c="q"))
    assert [each.claim.name for each in found] == ["a", "b"]
    assert "the claims team/a, team/b have pods in common" in found[0].text


def test_claims_that_are_linked_through_pods_are_one_group():
    there = [allowance(name, 1) for name in "abc"]
    names = {"a": "p", "b": "q", "c": "p q"}
    assert over(there, [use("p", 3)], **names) == []
    assert over(there, [use("p", 3), use("q", 1)], **names) == ["a", "b", "c"]


def test_one_without_a_limit_frees_its_group():
    there = [allowance("a", 1, 10), allowance("b", None, None)]
    assert over(there, [use("p", 50, 90)], a="p", b="p") == []


def test_cards_are_judged_one_by_one():
    there = [allowance("a", 1), allowance("a", 1, gpu=OTHER)]
    found = excesses(there, {CARD: [use("p", 1)], OTHER: [use("p", 2)]}, pods(a="p"))
    assert [each.gpu for each in found] == [OTHER]


def test_strangers_cards_and_claims_that_are_not_known_are_not_judged():
    there = [allowance("a", 1), allowance("b", 1, gpu=OTHER), allowance("c", 1)]
    assert over(there, [use(None, 50), use("x", 50)], a="p", b="p") == []


def test_many_processes_are_not_all_named():
    uses = [use("p", 1, pid=n, name="") for n in range(10)]
    (found,) = excesses([allowance("a", 1)], {CARD: uses}, pods(a="p"))
    assert found.text.endswith("? (0), ? (1), ? (2), ? (3), ? (4), ? (5), ? (6), ? (7) and 2 more")


# From look to look --------------------------------------------------------------------------

A, B = (Excess(claim(name), CARD, "too much", ("p",)) for name in "ab")


def looks(known: Watched, found: list[Excess], times: int = PATIENCE, judged=(A, B)):
    told: list[Excess] = []
    cleared: list[Excess] = []
    for _ in range(times):
        known, fresh, over = look(known, found, {each.key for each in judged})
        told += fresh
        cleared += over
    return known, told, cleared


def test_it_is_said_once_and_only_when_it_lasts():
    known, told, _ = looks(Watched(), [A], PATIENCE - 1)
    assert told == []
    known, told, _ = looks(known, [], 1)
    known, told, _ = looks(known, [A], PATIENCE - 1)
    assert told == []
    known, told, _ = looks(known, [A], 5)
    assert told == [A]
    assert known.told == {A.key: A}


def test_it_is_taken_back_once_and_only_when_that_lasts():
    known, _, _ = looks(Watched(), [A, B])
    known, _, cleared = looks(known, [B], PATIENCE - 1)
    assert cleared == []
    known, told, cleared = looks(known, [B], 5)
    assert (told, cleared) == ([], [A])
    assert known.told == {B.key: B}


def test_what_could_not_be_looked_at_stays_as_it_was():
    known, _, _ = looks(Watched(), [A])
    after, told, cleared = looks(known, [], 5, judged=())
    assert (after, told, cleared) == (known, [], [])


def test_a_released_claim_is_forgotten():
    known, _, _ = looks(Watched(), [A, B])
    known, _, _ = looks(known, [], 1)
    known = forget(known, {B.key})
    assert known == Watched({B.key: B}, {B.key: 1})
    _, _, cleared = looks(known, [], 1)
    assert cleared == [B]


def test_an_allowance_is_keyed_as_its_excess():
    assert allowance("a", 1).key == A.key


# From records -------------------------------------------------------------------------------


def held(kind: str, share: Share | None, gpu: GpuUuid = CARD, *, admin: bool = False) -> Held:
    allocation = Allocation(0, RequestName("gpu"), "node", DeviceName("d"), admin=admin)
    return Held(allocation, gpu, kind, share=share)


def share(gib: int, percent: int = 0) -> Share:
    return Share(Bytes(gib * GIB), percent, Limits("none", "none"))


def of_record(*parts: Held) -> tuple[Allowance, ...]:
    return allowances([Record(claim("a"), parts, (), ClaimState.COMPLETED, "boot")])


def test_the_shares_of_a_claim_on_one_card_are_one_allowance():
    found = of_record(held("mps", share(10, 20)), held("mps", share(4, 5)))
    assert found == (allowance("a", 14, 25),)
    found = of_record(held("mps", share(10, 20)), held("mps", share(4), OTHER))
    assert found == (allowance("a", 10, 20), allowance("a", 4, None, OTHER))


def test_a_share_without_a_cap_frees_the_claim_of_it():
    assert of_record(held("mps", share(10, 20)), held("mps", share(4))) == (allowance("a", 14),)


def test_a_turn_has_what_it_said_it_would_use():
    assert of_record(held("timeslice", share(10, 20))) == (allowance("a", 10),)
    assert of_record(held("timeslice", share(0)), held("timeslice", share(1))) == (
        allowance("a", None),
    )


def test_whole_cards_and_admin_access_are_not_watched():
    assert of_record(held("gpu", None), held("mps", share(1), admin=True)) == ()


def test_only_what_could_be_looked_at_is_judged():
    there = [allowance("a", 1), allowance("b", 1), allowance("a", 1, gpu=OTHER)]
    assert judged(there, {CARD: []}, pods(a="p")) == {(ClaimUid("uid-a"), CARD)}
