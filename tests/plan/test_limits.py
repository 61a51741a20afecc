"""What pods are limited to, for one claim and for several together."""

from dataclasses import replace

import pytest

from driver.errors import ClaimError
from driver.model.claims import ClaimState
from driver.model.steps import LimitPod, MpsNamespace
from driver.model.units import Bytes
from driver.plan.limits import check_pods, effective, given, limited, limited_pods, rest
from driver.plan.prepare import plan_prepare, steps_to_undo
from driver.plan.status import status_patch
from tests.plan.builders import BOOT, DRIVER, by_name, gpu, whole
from tests.plan.shared import GIB, MEMORY, MIB, NEW_DRIVER, PODS, V3, of, part, shared_of, wants

CARD = gpu(0)
POD, TURNS = shared_of(CARD, PODS, NEW_DRIVER)
NS, _ = shared_of(gpu(1), V3, NEW_DRIVER)
DEVICES = by_name(POD, TURNS, NS, whole(CARD))
P, Q = "00000001-1111-4000-8000-000000000000", "00000002-1111-4000-8000-000000000000"


def plan(wanted, *records):
    return plan_prepare(wanted, DEVICES, records, BOOT)


def prepared(wanted, *pods):
    return replace(limited(plan(wanted), pods), state=ClaimState.COMPLETED)


def limits(record):
    return [step for step in record.steps if isinstance(step, LimitPod)]


def test_a_claim_gives_each_of_its_pods_all_of_its_shares_of_a_card():
    record = plan(of("a", part(POD, 14 * GIB), part(POD, 10 * GIB, 0, 1)))
    assert given(record) == {CARD.uuid: 24 * GIB}
    both = limited(record, [Q, P, Q])
    assert limits(both) == [LimitPod(CARD.uuid, pod, 24 * GIB) for pod in (P, Q)]
    assert both.steps[:-2] == record.steps
    assert limited_pods(both) == {P, Q}
    assert limited(both, [Q]) == limited(record, [Q])
    assert limited(both, []) == record


def test_what_is_limited_is_never_more_than_was_consumed():
    odd = part(POD, 3 * MIB + 4096)
    assert given(plan(of("a", odd))) == {CARD.uuid: 3 * MIB}
    tighter = replace(part(POD), wishes=wants(POD, memory_limit=Bytes(GIB)).wishes)
    assert given(plan(of("a", tighter))) == {CARD.uuid: GIB}


def test_other_shares_and_whole_cards_limit_no_pod():
    whole_card = part(POD, MEMORY, 100)
    for wanted in (part(NS), part(TURNS, 0), whole_card):
        record = plan(of("a", wanted))
        assert given(record) == {}
        assert limited(record, [P]) == record
        check_pods(record, [P], [])


def test_the_level_is_recorded_and_told():
    record = plan(of("a", part(POD, 10 * GIB, 25)))
    (share,) = (held.share for held in record.held)
    assert (share.limits.memory, share.limits.compute) == ("cgroup", "mpsNamespace")
    patch = status_patch(record, {}, driver=DRIVER, now="2026-10-01T00:00:00Z")
    (entry,) = patch["status"]["devices"]
    assert entry["data"]["memoryLimit"] == "cgroup"
    (condition,) = entry["conditions"]
    assert condition["message"] == (
        f"share of card {CARD.uuid}; memory 10Gi limited by cgroup; compute 25 % limited by "
        "mpsNamespace; memory for each pod as a whole, compute for each process by itself"
    )


@pytest.mark.parametrize(
    ("named", "said"), [([], r"no pod \(status.reservedFor\)"), ([Q, P], f"pods {P}, {Q}")]
)
def test_a_claim_none_of_whose_pods_is_there_is_refused(named, said):
    record = plan(of("a", part(POD)))
    with pytest.raises(ClaimError, match=f"is reserved for {said}, and none has a cgroup"):
        check_pods(record, named, [])
    check_pods(record, named, [P])


def test_a_pods_limit_is_the_sum_of_its_prepared_claims():
    first, second = prepared(of("a", part(POD)), P, Q), prepared(of("b", part(POD, 4 * GIB)), P)
    elsewhere = replace(second, steps=(LimitPod(NS.gpu.uuid, P, GIB), LimitPod(CARD.uuid, Q, 1)))
    step = limits(first)[0]
    assert effective(step, first, [first, second, elsewhere]) == replace(step, memory=14 * GIB)
    assert rest(step, first, [first, second]) == replace(step, memory=4 * GIB)
    assert rest(step, first, [first]) is None


def test_a_claim_that_is_begun_or_half_released_adds_nothing_to_others():
    first, second = prepared(of("a", part(POD)), P), prepared(of("b", part(POD)), P)
    begun = replace(second, state=ClaimState.STARTED)
    (step,) = limits(first)
    assert effective(step, first, [first, begun]) == step
    assert rest(step, first, [begun]) is None
    (own,) = limits(begun)
    assert effective(own, begun, [first, begun]) == replace(own, memory=20 * GIB)


def test_limits_go_first_and_though_others_have_the_same():
    first, second = prepared(of("a", part(POD)), P), prepared(of("b", part(POD)), P)
    kinds = [type(step) for step in steps_to_undo(first, [first, second])]
    assert kinds == [LimitPod, MpsNamespace]


def test_other_steps_are_what_they_are():
    record = prepared(of("a", part(POD)), P)
    for step in record.steps[:-1]:
        assert effective(step, record, [record]) is step
        assert rest(step, record, [record]) is None
