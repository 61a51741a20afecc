"""``python -m bench.packing``: claims that find no partition, with our orders and the naive one.

For each product and mix an order is searched at 60 % load as ``aliquot plan order`` does; then
it, the built-in order and the naive one meet the same claims, which no search has seen.
``python -m bench.packing table`` searches the built-in orders of ``driver.plan.order_table``.
Everything is seeded: the same options print the same numbers.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

import click

from bench.packing_mixes import CARDS, LOADS, PRODUCTS, SEARCHED_LOAD, mixes
from cli.plan import shapes_of
from driver.plan.order import Order, Shape, merged, naive
from driver.plan.order_search import Problem, Progress, around, search
from driver.plan.order_sim import Mix, rejected_shares
from driver.plan.order_table import table_order
from driver.sim.profiles import PROFILES

GOAL, WORST = 0.8, 1.02  # of the naive order's rejections: mean over the mixes, and any of them


@dataclass(frozen=True, slots=True)
class Row:
    """Rejected GPU slices to offered ones."""

    product: str
    mix: str
    load: float
    naive: float
    built_in: float
    searched: float


@click.group(invoke_without_command=True, help=__doc__)
@click.option("--product", "products", multiple=True, type=click.Choice(PRODUCTS))
@click.option("--tries", type=click.IntRange(1), default=500, show_default=True)
@click.option("--claims", type=click.IntRange(1), default=300_000, show_default=True)
@click.pass_context
def main(ctx: click.Context, products: tuple[str, ...], tries: int, claims: int) -> None:
    """See the module."""
    if ctx.invoked_subcommand is None:
        rows: list[Row] = []
        for row in measured(products or PRODUCTS, tries, claims):
            rows.append(row)
            print(_line(row), flush=True)
        print("\n".join(_summary(rows)))


def measured(
    products: Iterable[str], tries: int, claims: int, learnt: int = 60_000
) -> Iterator[Row]:
    """A row for each product, mix and load; the search has ``learnt`` claims."""
    for product in products:
        board = PROFILES[product]
        shapes = shapes_of(board)
        plain = naive(shapes)
        built_in = merged(table_order(shapes), plain)
        for mix, shares in mixes(board).items():
            problem = Problem(shapes, CARDS, around(shares, SEARCHED_LOAD), learnt)
            best = _best(problem, tries).best
            for load in LOADS:
                arrivals = (claims, f"bench {product} {mix} {load}")
                orders = (plain, built_in, best)
                rates = rejected_shares(orders, Mix(shares, load), shapes, CARDS, arrivals)
                yield Row(product, mix, load, *rates)


def _best(problem: Problem, tries: int) -> Progress:
    found = None
    for found in islice(search(problem), tries):
        if sys.stderr.isatty():
            text = f"\r{found.tried} of {tries} orders, {found.score:.3f}\x1b[K"
            print(text, end="\r", file=sys.stderr, flush=True)
    if found is None:
        raise ValueError("tries: got 0, want at least 1")
    return found


def _line(row: Row) -> str:
    cells = (row.product, row.mix, f"{row.load:.0%}", f"{row.naive:.4f}")
    ratios = (f"{_ratio(each, row):.2f}" for each in (row.built_in, row.searched))
    return "| " + " | ".join((*cells, *ratios)) + " |"


def _ratio(rejected: float, row: Row) -> float:
    """To the naive order's; 1 where neither rejects anything."""
    if row.naive:
        return rejected / row.naive
    return math.inf if rejected else 1


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    """Means over the mixes, and the worst of all, against the goals."""
    for product in dict.fromkeys(row.product for row in rows):
        for load in LOADS:
            chosen = [row for row in rows if (row.product, row.load) == (product, load)]
            found = fmean(_ratio(row.searched, row) for row in chosen)
            table = fmean(_ratio(row.built_in, row) for row in chosen)
            verdict = "" if found <= GOAL else f" (over {GOAL})"
            text = f"mean of the mixes, searched {found:.2f}{verdict}, built-in {table:.2f}"
            yield f"{product} {load:.0%}: {text}"
    for name in ("searched", "built_in"):
        worst = max(_ratio(getattr(row, name), row) for row in rows)
        yield f"worst of all, {name}: {worst:.2f}{'' if worst <= WORST else f' (over {WORST})'}"


@main.command()
@click.argument("product", type=click.Choice(PRODUCTS))
@click.option("--tries", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--claims", type=click.IntRange(1), default=120_000, show_default=True)
def table(product: str, tries: int, claims: int) -> None:
    """Search the built-in order of PRODUCT's geometry: one for all mixes."""
    board = PROFILES[product]
    shapes: tuple[Shape, ...] = shapes_of(board)
    all_mixes = tuple(Mix(shares, SEARCHED_LOAD) for shares in mixes(board).values())
    best = _best(Problem(shapes, CARDS, all_mixes, claims), tries)
    print(f"score {best.score:.3f}")
    print("\n".join(_literal(shapes, best.best)))


def _literal(shapes: Sequence[Shape], order: Order) -> Iterator[str]:
    """As it stands in the table; variants of a profile have its geometry."""
    for shape in shapes:
        if "+" not in shape.name:
            walks = ", ".join(
                f"Pass({each.starts}, down={each.down})" for each in order.profiles[shape.name]
            )
            yield f"    ({shape.slices}, {shape.size}): ({walks},),  # {shape.name}"


if __name__ == "__main__":
    main()
