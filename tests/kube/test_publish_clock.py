"""The clock's arithmetic, on a time that stands still."""

import pytest

from kubeletplugin.publish_clock import Clock, Timing


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr("kubeletplugin.publish_clock.time.monotonic", lambda: 1000.0)
    monkeypatch.setattr("kubeletplugin.publish_clock.random.uniform", lambda low, high: high)
    return Clock(Timing(relist_s=60, debounce_s=1, debounce_max_s=5, backoff_s=1, backoff_max_s=4))


def wait_of(clock: Clock) -> float:
    found = clock._due_at - 1000.0
    clock._due_at = float("inf")  # as ``wait`` does when the time has come
    return found


def test_disputes_double_the_wait_up_to_its_limit_and_peace_ends_it(clock):
    waits = []
    for _ in range(4):
        clock.foreign()
        waits.append(wait_of(clock))
        clock.done(wrote=True)
        assert wait_of(clock) == 60
    assert waits == [1, 2, 4, 5]
    clock.done(wrote=False)
    wait_of(clock)
    clock.foreign()
    assert wait_of(clock) == 1


def test_own_writes_are_no_dispute(clock):
    clock.done(wrote=True)
    wait_of(clock)
    clock.foreign()
    assert wait_of(clock) == 1


def test_failures_double_the_wait_and_success_ends_it(clock):
    waits = []
    for _ in range(4):
        clock.failed(None)
        waits.append(wait_of(clock))
    assert waits == [1, 2, 4, 4]
    clock.failed(30.0)
    assert wait_of(clock) == 30
    clock.done(wrote=False)
    wait_of(clock)
    clock.failed(None)
    assert wait_of(clock) == 1


def test_the_first_conflict_costs_nothing_the_next_ones_do(clock):
    clock.again()
    assert wait_of(clock) == 0
    clock.again()
    assert wait_of(clock) == 2


def test_a_sooner_reason_wins_over_a_later_one(clock):
    clock.done(wrote=False)
    clock.foreign()
    assert wait_of(clock) == 1


def test_never_ends_with_now_alone(clock):
    clock.never()
    clock.foreign()
    clock.done(wrote=False)
    assert wait_of(clock) == float("inf")
    clock.now()
    assert clock.due
