"""The order in which partitions are published: the scheduler takes the first one that fits.

An order says for each profile how to walk over the cards (``api.policy_order``): a list of
passes, each with a direction and the starts to list on every card. One pass with all starts is
card by card, a pass for each start is placement by placement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from api.policy_order import Order, Pass
from driver.model.ids import PciAddress
from driver.plan.topology import pci_order

__all__ = [
    "Order",
    "Pass",
    "Placement",
    "Shape",
    "applied",
    "listed",
    "merged",
    "naive",
    "problems",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a profile takes of a card. The memory slices of two partitions must not overlap."""

    name: str
    slices: int  # GPU slices: the weight of a claim
    size: int  # memory slices
    starts: tuple[int, ...]  # possible placements, in memory slices
    consumes: Mapping[str, int] = field(default_factory=dict)  # of the card's other counters


@dataclass(frozen=True, slots=True)
class Placement:
    """A partition that could be made."""

    card: PciAddress
    profile: str
    start: int


def naive(shapes: Sequence[Shape]) -> Order:
    """Card by card, placements by start: what lists of devices look like without an order."""
    return Order({shape.name: (Pass(tuple(sorted(shape.starts))),) for shape in shapes})


def merged(first: Order, then: Order) -> Order:
    """``first``, and what ``then`` says of profiles that ``first`` does not name."""
    return Order({**then.profiles, **first.profiles})


def listed(passes: Sequence[Pass], starts: Sequence[int], cards: int) -> list[tuple[int, int]]:
    """Every placement of a profile as (number of the card, start), each once.

    Starts that ``starts`` lacks are left out, those that no pass names come last: a driver
    update may change the placements of a profile, and none must be lost by it.
    """
    named = {start for each in passes for start in each.starts}
    rest = Pass(tuple(sorted(start for start in starts if start not in named)))
    return [
        (card, start)
        for each in (*passes, rest)
        for card in (range(cards - 1, -1, -1) if each.down else range(cards))
        for start in each.starts
        if start in starts
    ]


def applied(
    order: Order, cards: Sequence[PciAddress], shapes: Sequence[Shape]
) -> Mapping[str, tuple[Placement, ...]]:
    """The placements of every profile on cards of one product, as they should be published.

    Profiles come in the order of ``shapes``; one that the order does not name is listed card by
    card. The order of ``cards`` does not matter: they are taken by PCI address.
    """
    sorted_cards = sorted(cards, key=pci_order)
    return {
        shape.name: tuple(
            Placement(sorted_cards[card], shape.name, start)
            for card, start in listed(
                order.profiles.get(shape.name, ()), shape.starts, len(sorted_cards)
            )
        )
        for shape in shapes
    }


def problems(order: Order, shapes: Sequence[Shape]) -> list[str]:
    """What an order says that a card does not have, and what it leaves out."""
    known = {shape.name: shape for shape in shapes}
    found = []
    for name, passes in order.profiles.items():
        if name not in known:
            found.append(f"{name}: the card has no such profile; it has {', '.join(known)}")
            continue
        named = [start for each in passes for start in each.starts]
        starts = known[name].starts
        there = f"the card has {_numbers(starts)}"
        if unknown := sorted(set(named).difference(starts)):
            found.append(f"{name}: no placement at start {_numbers(unknown)}; {there}")
        if missing := sorted(set(starts).difference(named)):
            found.append(f"{name}: start {_numbers(missing)} is not listed; {there}")
        if twice := sorted({a for a, b in pairwise(sorted(named)) if a == b}):
            found.append(f"{name}: start {_numbers(twice)} is listed twice")
    return found


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)
