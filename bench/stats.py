"""Percentiles, ratios and tables. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Upper bounds of the ratio of medians to the Go example driver's in the same run (issue 1).
BUDGETS: Mapping[str, Mapping[str, float]] = {
    "get": {"prepare": 1.1, "again": 1.3, "unprepare": 1.0},
    "cache": {"prepare": 0.8, "again": 0.9, "unprepare": 1.0},
}


def percentile(values: Sequence[float], share: float) -> float:
    """The value at ``share`` (0 to 1) of the sorted values, linear between neighbours.

    Raises ValueError without values or for another share.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"percentile {share} of {len(values)} values; wanted 0 to 1 of some")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one kind of call, in the unit of its values."""

    n: int
    p50: float
    p90: float
    p99: float

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p90:.2f} / {self.p99:.2f}"


def summary(values: Sequence[float]) -> Summary:
    """Raises ValueError without values."""
    p50, p90, p99 = (percentile(values, share) for share in (0.5, 0.9, 0.99))
    return Summary(len(values), p50, p90, p99)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A number beside the most it may be."""

    value: float
    limit: float

    @property
    def met(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        return f"{self.value:.2f} ({'≤' if self.met else 'OVER'} {self.limit:g})"


def verdict(ours: Sequence[float], theirs: Sequence[float], limit: float) -> Verdict:
    """Ratio of the medians of one run against its budget."""
    return Verdict(percentile(ours, 0.5) / percentile(theirs, 0.5), limit)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as needed, the first flush left, the others flush right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    if any(len(one) != len(other) for one, other in pairwise(cells)):
        raise ValueError(f"rows of {sorted({len(row) for row in cells})} cells; wanted one length")
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(_padded(row, widths)).rstrip() for row in cells]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
