import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.model.gpu import GpuProcess
from driver.model.ids import ClaimUid
from driver.model.mig import Place
from driver.plan.reconcile import (
    ClaimView,
    Clock,
    Keep,
    Release,
    Wait,
    decide,
    orphans,
)
from tests.plan.builders import allocation, claim, gpu, record, whole

A, B = gpu(0), gpu(1)
UID = ClaimUid("a")
RECORD = record(claim("a", allocation(whole(A))), [A])
ADMIN = record(claim("b", allocation(whole(B), admin=True)), [B])
IDLE = {(A.uuid, None): ()}
GRACE = 60.0


def one(
    kept=RECORD, seen=ClaimView.GONE, processes=IDLE, first=0.0, now=GRACE
):  # an orphan whose time has come
    views = {} if seen is None else {kept.claim.uid: seen}
    known = {} if first is None else {kept.claim.uid: first}
    (decision,) = decide([kept], views, processes, known, Clock(now, GRACE))
    return decision


@pytest.mark.parametrize("seen", [ClaimView.FINE, None])
def test_a_claim_that_is_used_or_could_not_be_asked_about_is_kept(seen):
    assert one(seen=seen) == Keep(UID)


@pytest.mark.parametrize("seen", [ClaimView.GONE, ClaimView.OTHER_UID, ClaimView.NOT_ALLOCATED])
def test_an_orphan_is_released_when_its_time_has_come(seen):
    decision = one(seen=seen)
    assert decision == Release(UID, f"claim team/claim-a:a {seen.value}")


def test_an_orphan_seen_for_the_first_time_waits():
    decision = one(first=None, now=7.0)
    assert isinstance(decision, Wait)
    assert (decision.since, orphans([decision, Keep(ClaimUid("b"))])) == (7.0, {"a": 7.0})


def test_an_orphan_waits_out_its_grace_and_keeps_its_time():
    decision = one(first=10.0, now=69.9)
    assert isinstance(decision, Wait)
    assert decision.since == 10.0
    assert "orphanGraceSeconds" in decision.reason
    assert isinstance(one(first=10.0, now=70.0), Release)


def test_a_clock_that_went_back_starts_the_wait_anew():
    decision = one(first=100.0, now=7.0)
    assert isinstance(decision, Wait)
    assert decision.since == 7.0


def test_a_card_with_processes_is_not_given_away():
    decision = one(processes={(A.uuid, None): (GpuProcess(41, None), GpuProcess(42, None))})
    assert isinstance(decision, Wait)
    assert decision.reason.endswith(f"but processes still run on card {A.uuid}: 41, 42")


def test_a_card_whose_processes_are_not_known_is_not_given_away():
    decision = one(processes={})
    assert isinstance(decision, Wait)
    assert decision.reason.endswith(f"but the processes on card {A.uuid} cannot be read")


def test_admin_access_is_released_whoever_uses_the_card():
    assert isinstance(one(ADMIN, processes={}), Release)


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.none() | st.sampled_from(ClaimView), st.booleans()),
        max_size=12,
    )
)
def test_nothing_is_released_before_it_was_an_orphan_for_the_whole_grace(rounds):
    """Rounds: seconds since the one before, what the API said, whether a process ran."""
    first: dict[ClaimUid, float] = {}
    now, orphan_since = 0.0, None
    for step, seen, busy in rounds:
        now += step
        orphaned = seen not in {None, ClaimView.FINE}
        orphan_since = (now if orphan_since is None else orphan_since) if orphaned else None
        running = (GpuProcess(1, None),) if busy else ()
        processes: dict[Place, tuple[GpuProcess, ...]] = {(A.uuid, None): running}
        views = {} if seen is None else {UID: seen}
        decisions = decide([RECORD], views, processes, first, Clock(now, GRACE))
        first = orphans(decisions)
        ready = orphan_since is not None and now - orphan_since >= GRACE
        assert isinstance(decisions[0], Release) == (ready and not busy)
        assert isinstance(decisions[0], Keep) == (not orphaned)
        if isinstance(decisions[0], Release):
            break
