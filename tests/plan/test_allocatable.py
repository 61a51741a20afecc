import pytest

from api.policy import parse_policy
from driver.model.gpu import MigMode
from driver.plan.allocatable import allocatable, node_devices, whole_order
from driver.plan.topology import nvlink_groups
from tests.plan.builders import gpu, inventory, linked, switched

NOTHING = parse_policy("gpus: [{select: {all: true}, modes: []}]", "policy.yaml")
ALL = parse_policy("", "policy.yaml")


def order(*cards):
    return [card.minor for card in whole_order(cards, nvlink_groups(inventory(*cards)))]


@pytest.mark.parametrize(
    ("cards", "wanted"),
    [
        pytest.param([gpu(n) for n in range(4)], [3, 2, 1, 0], id="last-card-first"),
        pytest.param([switched(n) for n in range(4)], [3, 2, 1, 0], id="one-group"),
        pytest.param(
            [linked(0, 2), linked(1, 3), linked(2, 0), linked(3, 1)],
            [3, 1, 2, 0],
            id="pairs-stand-together",
        ),
        pytest.param(
            [gpu(0), linked(1, 2), linked(2, 1), gpu(3)], [3, 0, 2, 1], id="singles-before-pairs"
        ),
        pytest.param(
            [linked(0, 1), linked(1, 0), linked(2, 3, 4), linked(3, 2, 4), linked(4, 2, 3)],
            [1, 0, 4, 3, 2],
            id="small-groups-before-large-ones",
        ),
        pytest.param([], [], id="no-cards"),
    ],
)
def test_whole_cards_come_from_the_last_downward_and_groups_stay_together(cards, wanted):
    assert order(*cards) == wanted
    assert order(*reversed(cards)) == wanted


def test_claims_for_single_cards_leave_pairs_whole():
    cards = [linked(n, n ^ 1) for n in range(6)] + [gpu(6)]
    taken = order(*cards)[:3]  # what three claims for one card get, one after another
    left = set(range(6)) - set(taken)
    assert sum({n, n + 1} <= left for n in (0, 2, 4)) == 2


def test_whole_cards_are_taken_from_the_last_downward_and_shares_from_the_first_upward():
    cards = [gpu(0), gpu(1)]
    assert [device.name for device in allocatable(inventory(*cards), ALL)] == [
        "gpu-00000001",
        "gpu-00000000",
        "gpu-00000000-timeslice",
        "gpu-00000001-timeslice",
    ]


def test_a_card_that_the_policy_excludes_is_not_offered_and_may_be_held():
    cards = [gpu(0), gpu(1)]
    assert allocatable(inventory(*cards), NOTHING) == ()
    found = node_devices(inventory(*cards), NOTHING)
    assert [device.gpu for device in found] == [*cards[::-1], *cards, *cards]


@pytest.mark.parametrize(
    ("mode", "offered"),
    [
        pytest.param(None, True, id="no-mig"),
        pytest.param(MigMode(current=False, pending=True), True, id="mig-after-the-next-reset"),
        pytest.param(MigMode(current=True, pending=False), False, id="mig-until-the-next-reset"),
    ],
)
def test_a_card_in_mig_mode_is_not_offered_whole(mode, offered):
    assert bool(allocatable(inventory(gpu(0, mig_mode=mode)), ALL)) is offered
