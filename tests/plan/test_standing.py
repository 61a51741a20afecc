"""What is done already for the claims beside a claim."""

from dataclasses import replace

import pytest

from driver.model.claims import ClaimState
from driver.model.shares import Limits
from driver.model.steps import ServeMps
from driver.plan.prepare import plan_prepare
from driver.plan.standing import changes_nothing, standing
from tests.plan.builders import BOOT, by_name, cuttable, whole
from tests.plan.shared import CARD, NEW_DRIVER, PODS, of, part, shared_of

MPS, TURNS = shared_of(CARD, modes="[gpu, mps, timeslice]")
IN_PODS, _ = shared_of(CARD, PODS, NEW_DRIVER, modes="[mps, timeslice]")
FIRST = replace(
    plan_prepare(of("a", part(MPS)), by_name(MPS), (), BOOT), state=ClaimState.COMPLETED
)
SERVED = {step for step in FIRST.steps if isinstance(step, ServeMps)}


def test_a_further_share_changes_nothing_while_the_daemon_runs():
    assert changes_nothing(MPS, standing([FIRST], BOOT, SERVED))
    assert not changes_nothing(MPS, standing([FIRST], BOOT, set()))
    assert not changes_nothing(MPS, standing([FIRST], "another boot", SERVED))
    begun = replace(FIRST, state=ClaimState.STARTED)
    assert not changes_nothing(MPS, standing([begun], BOOT, SERVED))
    assert not changes_nothing(MPS, standing([], BOOT, SERVED))


def test_a_whole_card_changes_nothing_unless_it_may_be_cut_up():
    assert changes_nothing(whole(CARD), set())
    assert not changes_nothing(replace(whole(cuttable(0)), toggle=True), set())


def test_it_is_the_daemon_that_says_whether_shares_have_namespaces():
    """The device may be of a moment when the supervisor had not answered yet."""
    served = {replace(step, protocol=3) for step in SERVED}
    first = replace(FIRST, steps=tuple(served))
    assert not changes_nothing(MPS, standing([first], BOOT, served))


@pytest.mark.parametrize(
    "device",
    [
        pytest.param(None, id="unknown"),
        pytest.param(TURNS, id="a-turn"),
        pytest.param(IN_PODS, id="a-limit-of-its-own"),
        pytest.param(replace(MPS, limits=Limits("cgroup", "none")), id="cgroup-on-protocol-2"),
        pytest.param(replace(MPS, toggle=True), id="a-mode-to-be-checked"),
    ],
)
def test_others_may_change_something(device):
    assert not changes_nothing(device, standing([FIRST], BOOT, SERVED))
