from itertools import pairwise
from itertools import product as combinations_of

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.policy_order import OrderRule
from cli.plan import shapes_of
from driver.model.ids import PciAddress
from driver.plan.order import Order, Pass, Shape, applied, listed, merged, naive, problems
from driver.plan.order_moves import neighbours
from driver.plan.order_table import order_of, table_order
from driver.sim.profiles import PROFILES

MIG = [name for name, board in PROFILES.items() if board.mig_capable]
H100 = shapes_of(PROFILES["h100-80gb"])
CARDS = [PciAddress(f"{domain}:3b:00.0") for domain in ("0000", "0002", "0001", "10000")]
IN_ORDER = [CARDS[0], CARDS[2], CARDS[1], CARDS[3]]


def spots(order, profile, cards=CARDS, shapes=H100):
    walk = applied(order, cards, shapes)[profile]
    return [(sorted(cards, key=IN_ORDER.index).index(p.card), p.start) for p in walk]


@st.composite
def passes(draw, starts):
    shuffled = draw(st.permutations(starts))
    cuts = draw(st.sets(st.integers(1, len(starts) - 1))) if len(starts) > 1 else set()
    edges = [0, *sorted(cuts), len(starts)]
    return tuple(Pass(tuple(shuffled[a:b]), draw(st.booleans())) for a, b in pairwise(edges))


def everything(starts, cards):
    return sorted(combinations_of(range(cards), starts))


def test_naive_is_card_by_card_and_by_start():
    assert spots(naive(H100), "3g.40gb") == [(c, s) for c in range(4) for s in (0, 4)]


def test_a_pass_walks_over_the_cards_and_lists_its_starts_on_each():
    order = Order({"2g.20gb": (Pass((4, 2), down=True), Pass((0,)))})
    down = [(card, start) for card in (3, 2, 1, 0) for start in (4, 2)]
    assert spots(order, "2g.20gb") == [*down, (0, 0), (1, 0), (2, 0), (3, 0)]


def test_cards_are_taken_by_pci_address_however_they_come():
    order = Order({"7g.80gb": (Pass((0,), down=True),)})
    walks = [applied(order, cards, H100) for cards in (CARDS, CARDS[::-1], IN_ORDER)]
    assert walks[0] == walks[1] == walks[2]
    assert [place.card for place in walks[0]["7g.80gb"]] == IN_ORDER[::-1]


def test_a_profile_that_the_order_does_not_name_is_listed_card_by_card():
    assert spots(Order({}), "1g.20gb") == spots(naive(H100), "1g.20gb")


@given(passes((0, 1, 2, 3, 4, 5, 6)), st.integers(1, 9))
def test_every_order_lists_every_placement_once(walk, cards):
    found = listed(walk, (0, 1, 2, 3, 4, 5, 6), cards)
    assert sorted(found) == everything((0, 1, 2, 3, 4, 5, 6), cards)


@given(passes((0, 2, 4, 6)), st.sets(st.integers(0, 9), min_size=1))
def test_no_placement_is_lost_when_a_driver_update_changes_them(walk, starts):
    found = listed(walk, tuple(starts), 2)
    assert sorted(found) == everything(sorted(starts), 2)


@given(passes((0, 1, 2, 3)))
def test_every_neighbour_is_another_order_of_the_same_placements(walk):
    found = neighbours(walk)
    assert len(set(found)) == len(found)
    assert walk not in found
    for other in found:
        assert sorted(listed(other, (), 0)) == []
        assert sorted(s for each in other for s in each.starts) == [0, 1, 2, 3]
        assert all(each.starts for each in other)


def test_the_neighbours_reach_cuts_joins_turns_and_permutations():
    found = neighbours((Pass((0, 2)), Pass((4,))))
    assert (Pass((2, 0)), Pass((4,))) in found
    assert (Pass((0, 4)), Pass((2,))) in found
    assert (Pass((0, 2), down=True), Pass((4,))) in found
    assert (Pass((0,)), Pass((2,)), Pass((4,))) in found
    assert (Pass((0, 2, 4)),) in found


def test_what_a_card_does_not_have_is_told_all_at_once():
    order = Order(
        {
            "1g.5gb": (Pass((0,)),),
            "3g.40gb": (Pass((4, 5)), Pass((4,))),
            "4g.40gb": (Pass((0,)),),
        }
    )
    assert problems(order, H100) == [
        "1g.5gb: the card has no such profile; it has "
        "1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb",
        "3g.40gb: no placement at start 5; the card has 0, 4",
        "3g.40gb: start 0 is not listed; the card has 0, 4",
        "3g.40gb: start 4 is listed twice",
    ]


@pytest.mark.parametrize("name", MIG)
def test_the_table_has_an_order_for_every_plain_profile_of_every_product(name):
    shapes = shapes_of(PROFILES[name])
    found = table_order(shapes)
    assert {shape.name for shape in shapes} == set(found.profiles)
    assert problems(found, shapes) == []


def test_a_variant_follows_the_order_of_its_plain_profile():
    found = table_order(H100).profiles
    assert found["1g.10gb+me"] == found["1g.10gb"] == (Pass((6, 5, 4, 3, 2, 1, 0)),)


def test_an_unknown_geometry_stays_card_by_card():
    shapes = [Shape("1g.24gb", 1, 3, (0, 3, 6, 9)), Shape("4g.96gb", 4, 12, (0,))]
    assert order_of("NVIDIA RTX PRO 6000", shapes) == naive(shapes)


def test_the_first_rule_for_the_product_goes_before_the_table():
    ours = Order({"3g.40gb": (Pass((0,)), Pass((4,)))})
    other = Order({"3g.40gb": (Pass((0, 4)),)})
    rules = [OrderRule("NVIDIA A*", other), OrderRule("*H100*", ours), OrderRule("*", other)]
    found = order_of("NVIDIA H100 80GB HBM3", H100, rules)
    assert found.profiles["3g.40gb"] == ours.profiles["3g.40gb"]
    assert found.profiles["1g.10gb"] == table_order(H100).profiles["1g.10gb"]


def test_merged_keeps_what_the_first_says():
    first, then = Order({"a": (Pass((0,)),)}), Order({"a": (Pass((1,)),), "b": (Pass((2,)),)})
    assert merged(first, then) == Order({"a": (Pass((0,)),), "b": (Pass((2,)),)})
