"""The small changes of an order that the search tries. Pure."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TypeAlias

from driver.plan.order import Pass

Passes: TypeAlias = tuple[Pass, ...]


def neighbours(passes: Passes) -> list[Passes]:
    """All that differ from ``passes`` by one change, each once; the starts stay the same."""
    found = dict.fromkeys([*_permuted(passes), *_turned(passes), *_cut(passes), *_joined(passes)])
    return [each for each in found if each != passes]


def _starts(passes: Passes) -> tuple[int, ...]:
    return tuple(start for each in passes for start in each.starts)


def _filled(passes: Passes, starts: Sequence[int]) -> Passes:
    """The same passes with other starts in them."""
    left = iter(starts)
    return tuple(Pass(tuple(next(left) for _ in each.starts), each.down) for each in passes)


def _permuted(passes: Passes) -> Iterator[Passes]:
    starts = _starts(passes)
    yield _filled(passes, starts[::-1])
    for i, j in combinations(range(len(starts)), 2):
        between = starts[i + 1 : j]
        yield _filled(passes, (*starts[:i], starts[j], *between, starts[i], *starts[j + 1 :]))
        yield _filled(passes, (*starts[:i], *between, starts[j], starts[i], *starts[j + 1 :]))
        yield _filled(passes, (*starts[:i], starts[j], starts[i], *between, *starts[j + 1 :]))


def _turned(passes: Passes) -> Iterator[Passes]:
    yield tuple(Pass(each.starts, not each.down) for each in passes)
    for i, each in enumerate(passes):
        yield (*passes[:i], Pass(each.starts, not each.down), *passes[i + 1 :])


def _cut(passes: Passes) -> Iterator[Passes]:
    """One pass in two, and a pass for every start."""
    yield tuple(Pass((start,), each.down) for each in passes for start in each.starts)
    for i, each in enumerate(passes):
        for at in range(1, len(each.starts)):
            two = (Pass(each.starts[:at], each.down), Pass(each.starts[at:], each.down))
            yield (*passes[:i], *two, *passes[i + 1 :])


def _joined(passes: Passes) -> Iterator[Passes]:
    """Two passes in one, and a single one for all starts."""
    yield (Pass(_starts(passes), passes[0].down),)
    for i in range(len(passes) - 1):
        one = Pass(passes[i].starts + passes[i + 1].starts, passes[i].down)
        yield (*passes[:i], one, *passes[i + 2 :])
