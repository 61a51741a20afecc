"""Claims that come and go, given to the first placement in the published order that fits.

As the scheduler does it (Kubernetes 1.34 to 1.37): a claim for a profile takes the first device
of the profile's list whose counters suffice, or is rejected; it never waits.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from driver.plan.order import Order, Pass, Shape, listed

Walk: TypeAlias = Sequence[tuple[int, int]]  # of one profile: (number of the card, its cost)


@dataclass(frozen=True, slots=True)
class Mix:
    """What claims ask for. ``shares`` are relative numbers of claims, by profile."""

    shares: Mapping[str, float]
    load: float  # offered GPU slices (in claims alive at once) to those of the node


@dataclass(frozen=True, slots=True)
class Stream:
    """Claims in time: arrival of claim i as i, its end as ~i; ``kinds[i]`` is its profile."""

    profiles: tuple[str, ...]
    kinds: tuple[int, ...]
    events: tuple[int, ...]

    def offered(self, shapes: Sequence[Shape]) -> int:
        """GPU slices of all claims."""
        weights = slices_of(self, shapes)
        return sum(weights[kind] for kind in self.kinds)


def poisson(mix: Mix, shapes: Sequence[Shape], cards: int, claims: int, seed: str) -> Stream:
    """Poisson arrivals, exponential life of mean 1, profiles drawn by their shares."""
    rng = random.Random(seed)  # noqa: S311 - a simulation
    slices = {shape.name: shape.slices for shape in shapes}
    profiles = tuple(mix.shares)
    shares = [mix.shares[name] for name in profiles]
    mean = sum(slices[name] * mix.shares[name] for name in profiles) / sum(shares)
    rate = mix.load * cards * max(slices.values()) / mean
    kinds = rng.choices(range(len(profiles)), shares, k=claims)
    arrivals = list(accumulate(rng.expovariate(rate) for _ in kinds))
    times = [(arrival, i) for i, arrival in enumerate(arrivals)]
    times += [(arrival + rng.expovariate(1), ~i) for i, arrival in enumerate(arrivals)]
    return Stream(profiles, tuple(kinds), tuple(event for _, event in sorted(times)))


@dataclass(frozen=True, slots=True)
class Ledger:
    """The counters of a card in one number, so that "does it fit" is one addition.

    Each counter is a field with a bit above it that is set as soon as more is consumed than
    there is: a field starts at what its total lacks to that bit. One cost never exceeds the total,
    so no sum runs into the next field.
    """

    guard: int  # the bits that must stay clear
    empty: int  # the card with nothing on it
    fields: Mapping[str, int]  # counter → position of its lowest bit

    def cost(self, shape: Shape, start: int) -> int:
        """What a placement adds."""
        used = {f"memory-slice-{i}": 1 for i in range(start, start + shape.size)}
        used |= shape.consumes
        return sum(n << self.fields[name] for name, n in used.items() if name in self.fields)


def ledger(shapes: Sequence[Shape]) -> Ledger:
    """The counters of a card with these profiles; a total is the most that one profile takes.

    Counters that placements cannot use up without overlapping are left out: it is the same and
    faster.
    """
    memory = max(start + shape.size for shape in shapes for start in shape.starts)
    totals = {f"memory-slice-{i}": 1 for i in range(memory)}
    for name in dict.fromkeys(name for shape in shapes for name in shape.consumes):
        total = max(shape.consumes.get(name, 0) for shape in shapes)
        if _most(name, shapes, memory) > total:
            totals[name] = total
    guard = empty = at = 0
    fields = {}
    for name, total in totals.items():
        bits = total.bit_length()
        fields[name] = at
        guard |= 1 << (at + bits)
        empty |= ((1 << bits) - 1 - total) << at
        at += bits + 1
    return Ledger(guard, empty, fields)


def _most(counter: str, shapes: Sequence[Shape], memory: int) -> int:
    """The most that placements which do not overlap take of a counter."""
    best = [0] * (memory + 1)  # of the memory slices below
    for end in range(1, memory + 1):
        best[end] = best[end - 1]
        for shape in shapes:
            if end - shape.size in shape.starts:
                taken = best[end - shape.size] + shape.consumes.get(counter, 0)
                best[end] = max(best[end], taken)
    return best[memory]


def walk(passes: Sequence[Pass], shape: Shape, book: Ledger, cards: int) -> Walk:
    """The placements of a profile in the published order."""
    return [(card, book.cost(shape, start)) for card, start in listed(passes, shape.starts, cards)]


def rejected(stream: Stream, order: Order, shapes: Sequence[Shape], cards: int) -> int:
    """GPU slices of the claims that found no placement."""
    book = ledger(shapes)
    found = _walks(stream, order, shapes, book, cards)
    lost, _ = run(stream, found, slices_of(stream, shapes), (book.empty, book.guard, cards))
    return lost


def given(
    stream: Stream, order: Order, shapes: Sequence[Shape], cards: int
) -> list[tuple[int, int] | None]:
    """For each claim the card's number and the start it got; None: rejected."""
    book = ledger(shapes)
    found = _walks(stream, order, shapes, book, cards)
    _, held = run(stream, found, [0] * len(found), (book.empty, book.guard, cards))
    by_name = {shape.name: shape for shape in shapes}
    starts = [
        {book.cost(by_name[name], start): start for start in by_name[name].starts}
        for name in stream.profiles
    ]
    return [
        None if place is None else (place[0], starts[kind][place[1]])
        for kind, place in zip(stream.kinds, held, strict=True)
    ]


def _walks(
    stream: Stream, order: Order, shapes: Sequence[Shape], book: Ledger, cards: int
) -> list[Walk]:
    by_name = {shape.name: shape for shape in shapes}
    return [
        walk(order.profiles.get(name, ()), by_name[name], book, cards) for name in stream.profiles
    ]


def rejected_shares(
    orders: Sequence[Order],
    mix: Mix,
    shapes: Sequence[Shape],
    cards: int,
    claims: tuple[int, str],  # how many, and the seed of their arrivals
) -> list[float]:
    """For each order the GPU slices of rejected claims to those of all claims, 0 to 1.

    All orders meet the same claims.
    """
    stream = poisson(mix, shapes, cards, *claims)
    offered = stream.offered(shapes)
    return [rejected(stream, order, shapes, cards) / offered for order in orders]


def slices_of(stream: Stream, shapes: Sequence[Shape]) -> list[int]:
    """GPU slices of a claim, by its kind."""
    slices = {shape.name: shape.slices for shape in shapes}
    return [slices[name] for name in stream.profiles]


def run(
    stream: Stream, found: Sequence[Walk], weights: Sequence[int], node: tuple[int, int, int]
) -> tuple[int, list[tuple[int, int] | None]]:
    """The weights of rejected claims, and of each claim (card, cost) or None.

    Everything is made ready: ``found`` and ``weights`` by the kind of a claim, ``node`` is
    (empty card, guard, cards).
    """
    empty, guard, cards = node
    used, kinds = [empty] * cards, stream.kinds
    held: list[tuple[int, int] | None] = [None] * len(kinds)
    lost = 0
    for event in stream.events:
        if event < 0:
            if (place := held[~event]) is not None:
                used[place[0]] -= place[1]
            continue
        kind = kinds[event]
        for place in found[kind]:
            if not (used[place[0]] + place[1]) & guard:
                used[place[0]] += place[1]
                held[event] = place
                break
        else:
            lost += weights[kind]
    return lost, held
