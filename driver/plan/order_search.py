"""Search for an order that rejects fewer claims of an expected mix. Pure, and seeded.

Coordinate search with restarts: one change of one profile's passes at a time, from the naive
order and then from the best one after a few random changes. An order is only kept when it is
better on the streams of the search, so the result is never worse there than naive.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from driver.plan.order import Order, Shape, naive
from driver.plan.order_moves import Passes, neighbours
from driver.plan.order_sim import Mix, Stream, Walk, ledger, poisson, run, slices_of, walk

_Lost: TypeAlias = tuple[float, ...]  # by mix: rejections, the naive order's being 1

_PARTS = 4  # streams a mix, so that a bad order is given up early
_SLACK = 0.08  # how much worse it may be on the first stream; less on each further one
_KICKS = (2, 3, 4, 6)  # random changes at a restart


@dataclass(frozen=True, slots=True)
class Problem:
    """What to search for: an order for all ``mixes`` at once, each with the same weight."""

    shapes: Sequence[Shape]
    cards: int
    mixes: Sequence[Mix]
    claims: int = 60_000  # of the search's streams, all together
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """``score`` is the best order's rejections over the naive one's, on the search's streams."""

    tried: int
    score: float
    best: Order


@dataclass(frozen=True, slots=True)
class _Measured:
    order: Order
    score: float
    path: tuple[float, ...]  # rejections up to each stream


def around(shares: Mapping[str, float], load: float) -> tuple[Mix, ...]:
    """A mix at its load and a sixth below and above, so that the order suits all three."""
    return tuple(Mix(shares, load * sixths / 6) for sixths in (5, 6, 7))


def search(problem: Problem) -> Iterator[Progress]:
    """The best order so far after every candidate, without end; the first is the naive one.

    The same problem gives the same sequence.
    """
    rng = random.Random(problem.seed)  # noqa: S311 - a search
    judge = _Judge(problem)
    names = sorted({name for mix in problem.mixes for name in mix.shares})
    best = start = judge.measure(naive(problem.shapes))
    tried = 1
    yield Progress(tried, best.score, best.order)
    while True:
        for found in _descent(rng, judge, names, start):
            tried += 1
            if found.score < best.score:
                best = found
            yield Progress(tried, best.score, best.order)
        start = judge.measure(_kicked(rng, names, best.order))


def _descent(
    rng: random.Random, judge: "_Judge", names: Sequence[str], here: _Measured
) -> Iterator[_Measured]:
    """Where the search stands after each candidate, until no single change is better."""
    before = None
    while before is not here:
        before = here
        for name in rng.sample(names, len(names)):
            around_it = neighbours(here.order.profiles[name])
            for passes in rng.sample(around_it, len(around_it)):
                here = judge.better(_with(here.order, name, passes), here) or here
                yield here


def _kicked(rng: random.Random, names: Sequence[str], order: Order) -> Order:
    for _ in range(rng.choice(_KICKS)):
        name = rng.choice(names)
        order = _with(order, name, rng.choice(neighbours(order.profiles[name])))
    return order


def _with(order: Order, name: str, passes: Passes) -> Order:
    return Order({**order.profiles, name: passes})


class _Judge:
    """Compares orders on the streams of a problem, in the same sequence for each."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._book = ledger(problem.shapes)
        self._node = (self._book.empty, self._book.guard, problem.cards)
        self._shapes = {shape.name: shape for shape in problem.shapes}
        self._walks: dict[tuple[str, Passes], Walk] = {}
        plain = naive(problem.shapes)
        self._streams = [  # by part, by mix
            [self._stream(mix, part) for mix in problem.mixes] for part in range(_PARTS)
        ]
        self._naive = [
            max(1, sum(self._lost(stream, plain) for stream in of_a_mix))
            for of_a_mix in zip(*self._streams, strict=True)
        ]

    def _stream(self, mix: Mix, part: int) -> Stream:
        problem = self._problem
        claims = max(1, problem.claims // len(problem.mixes) // _PARTS)
        seed = f"search {problem.seed}, {mix.load}, part {part}"
        return poisson(mix, problem.shapes, problem.cards, claims, seed)

    def _lost(self, stream: Stream, order: Order) -> int:
        found = [self._walk(name, order.profiles[name]) for name in stream.profiles]
        lost, _ = run(stream, found, slices_of(stream, self._problem.shapes), self._node)
        return lost

    def _walk(self, name: str, passes: Passes) -> Walk:
        """Made once: a candidate differs in one profile only."""
        if (name, passes) not in self._walks:
            self._walks[name, passes] = walk(
                passes, self._shapes[name], self._book, self._problem.cards
            )
        return self._walks[name, passes]

    def measure(self, order: Order) -> _Measured:
        path = tuple(self._path(order))
        return _Measured(order, _score(path[-1]), tuple(sum(lost) for lost in path))

    def better(self, order: Order, than: _Measured) -> _Measured | None:
        """None if the order is not better, or so much worse on its first streams that it
        will not be."""
        path = []
        last = len(than.path) - 1
        lost: _Lost = ()
        for i, lost in enumerate(self._path(order)):
            path.append(sum(lost))
            if i < last and path[i] > than.path[i] * (1 + _SLACK * (1 - i / last)):
                return None
        score = _score(lost)
        return _Measured(order, score, tuple(path)) if score < than.score else None

    def _path(self, order: Order) -> Iterator[_Lost]:
        """What is lost up to each stream."""
        lost = [0.0] * len(self._naive)
        for streams in self._streams:
            for i, (stream, plain) in enumerate(zip(streams, self._naive, strict=True)):
                lost[i] += self._lost(stream, order) / plain
                yield tuple(lost)


def _score(lost: _Lost) -> float:
    """Mean over the mixes; what is worse than naive in one of them counts twice."""
    return sum(each + max(0.0, each - 1) for each in lost) / len(lost)
