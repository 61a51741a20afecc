"""``aliquot plan``: what to write into the node policy, found by calculation."""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from cli.options import Number
from cli.text import table

if TYPE_CHECKING:
    from driver.plan.order import Order, Shape
    from driver.plan.order_search import Progress
    from driver.sim.boards import Profile

_UNSEEN = 100_000  # claims of each measurement after the search
_COUNTERS = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg", "ofa")


@click.group()
def plan() -> None:
    """Find settings of the node policy for what is expected of the cards."""


@plan.command()
@click.option("--product", required=True, help="A model of card, as in h100-80gb.")
@click.option(
    "--mix",
    "mix_text",
    required=True,
    metavar="PROFILE=SHARE,…",
    help="How many claims ask for each profile, in relative numbers: 1g.10gb=6,3g.40gb=2.",
)
@click.option(
    "--cards", type=click.IntRange(1, 64), default=8, show_default=True, help="Cards of a node."
)
@click.option(
    "--load",
    type=Number(0, 2, min_open=True),
    default=0.6,
    show_default=True,
    help="GPU slices that claims want at a time, as a part of those of the node.",
)
@click.option(
    "--seconds",
    type=Number(0, 86_400, min_open=True),
    default=60,
    show_default=True,
    help="How long to search.",
)
@click.option(
    "--tries",
    type=click.IntRange(1),
    help="Stop after so many orders: the same result on every machine that gets there in time.",
)
@click.option("--seed", type=int, default=0, show_default=True)
def order(product: str, mix_text: str, seconds: float, tries: int | None, **node: Any) -> None:
    """Search the order of partitions for a mix of claims, and print it for the node policy.

    The scheduler takes the first partition that fits, so the order in which they are published
    decides how many claims find no room. Nothing is contacted.
    """
    board = _board(product)
    shapes = shapes_of(board)
    shares = _mix(mix_text, [shape.name for shape in shapes], product)
    job = _Job(shapes, shares, **node)
    found = _searched(job, seconds, tries)
    name, best = _chosen(job, found.best)
    head = f"aliquot plan order --product {product} --mix {mix_text} --cards {job.cards}"
    lines = [f"{head} --load {job.load:g} --seed {job.seed}", f"{found.tried} orders tried"]
    click.echo("\n".join(_report(job, [*lines, _VERDICTS[name]], best)))
    click.echo(_snippet(board.product, best, shares))


def shapes_of(board: "Profile") -> "tuple[Shape, ...]":
    """The profiles of a simulated card as the order knows them."""
    from driver.plan.order import Shape  # noqa: PLC0415

    return tuple(
        Shape(
            name=each.name,
            slices=each.slices,
            size=each.size,
            starts=each.starts,
            consumes={name: n for name in _COUNTERS if (n := getattr(each, name))},
        )
        for each in board.gpu_instance_profiles
    )


@dataclass(frozen=True)
class _Job:
    shapes: "tuple[Shape, ...]"
    shares: Mapping[str, float]
    cards: int
    load: float
    seed: int

    def rates(
        self, orders: "Sequence[Order]", purpose: str
    ) -> Iterator[tuple[float, Sequence[float]]]:
        """(load, part of the claims that each order rejects) at the load and around it.

        ``purpose`` is part of the seed: no two purposes meet the same claims.
        """
        from driver.plan.order_search import around  # noqa: PLC0415
        from driver.plan.order_sim import rejected_shares  # noqa: PLC0415

        claims = (_UNSEEN, f"{purpose} {self.seed}")
        for mix in around(self.shares, self.load):
            yield mix.load, rejected_shares(orders, mix, self.shapes, self.cards, claims)


def _board(product: str) -> "Profile":
    from driver.sim.profiles import PROFILES  # noqa: PLC0415 - keeps --help fast

    known = ", ".join(name for name, board in PROFILES.items() if board.mig_capable)
    if product not in PROFILES:
        raise click.UsageError(f"--product: no model {product!r}; known: {known}")
    if not PROFILES[product].mig_capable:
        raise click.UsageError(f"--product: {product} cannot be partitioned; these can: {known}")
    return PROFILES[product]


def _mix(text: str, known: Sequence[str], product: str) -> Mapping[str, float]:
    """``1g.10gb=6,3g.40gb=2`` → shares. Every problem is told at once."""
    found: dict[str, float] = {}
    problems = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = (each.strip() for each in part.partition("="))
        share = _share(number)
        if name not in known:
            problems.append(f"{product} has no profile {name!r}; it has {', '.join(known)}")
        elif name in found:
            problems.append(f"{name} stands here twice")
        if share is None:
            problems.append(f"{part!r}: wanted PROFILE=SHARE with a number above 0")
        found[name] = share or 1
    if not found:
        problems.append(f"it is empty; wanted PROFILE=SHARE,…, as in {known[0]}=1")
    if problems:
        raise click.UsageError("\n  ".join([f"--mix {text!r}:", *problems]))
    return found


def _share(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _searched(job: _Job, seconds: float, tries: int | None) -> "Progress":
    """The best order of the time given; shown on a terminal while it is being looked for."""
    from driver.plan.order_search import Problem, around, search  # noqa: PLC0415

    problem = Problem(job.shapes, job.cards, around(job.shares, job.load), seed=job.seed)
    steps = search(problem)
    begin = shown = time.monotonic()
    found = next(steps)
    while (now := time.monotonic()) < begin + seconds and found.tried != tries:
        if sys.stderr.isatty() and now - shown > 0.2:
            shown = now
            click.echo(f"\r{_line(found, now - begin, seconds)}\x1b[K", err=True, nl=False)
        found = next(steps)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    return found


def _line(found: "Progress", passed: float, seconds: float) -> str:
    done = f"{passed:.0f} of {seconds:g} s, {found.tried} orders tried"
    return f"{done}; the best rejects {found.score:.2f} of what the naive order does"


_VERDICTS = {
    "found": "the search's order is the best known",
    "built-in": "the driver's own order is as good as any found: the policy needs no entry",
    "naive": "nothing was found that is better than the naive order",
}


def _orders(job: _Job, found: "Order") -> "dict[str, Order]":
    from driver.plan.order import merged, naive  # noqa: PLC0415
    from driver.plan.order_table import table_order  # noqa: PLC0415

    plain = naive(job.shapes)
    built_in = merged(table_order(job.shapes), plain)
    return {"naive": plain, "built-in": built_in, "found": found}


def _chosen(job: _Job, found: "Order") -> "tuple[str, Order]":
    """The best on streams that the search did not see: it may have learnt its own by heart."""
    orders = _orders(job, found)
    rates = [each for _, each in job.rates(list(orders.values()), "choice")]
    lost = dict(zip(orders, map(sum, zip(*rates, strict=True)), strict=True))
    best = min(orders, key=lambda name: lost[name])
    return best, orders[best]


def _report(job: _Job, lines: Sequence[str], best: "Order") -> Iterator[str]:
    """Comments above the snippet."""
    orders = list(_orders(job, best).values())
    rows = [
        (f"{load:.0%}", *(f"{rate:.2%}" for rate in rates), _ratio(rates[2], rates[0]))
        for load, rates in job.rates(orders, "report")
    ]
    head = ("LOAD", "NAIVE", "BUILT-IN", "THIS", "THIS/NAIVE")
    what = "claims rejected, by GPU slices, in arrivals that the search has not seen:"
    for line in (*lines, what, *table(head, rows, indent=2)):
        yield f"# {click.unstyle(line)}"


def _ratio(rate: float, naive: float) -> str:
    return f"{rate / naive:.2f}" if naive else "-"


def _snippet(product: str, best: "Order", shares: Mapping[str, float]) -> str:
    """The part of the node policy, for the profiles of the mix."""
    import yaml  # noqa: PLC0415

    from api.policy_order import Order, OrderRule, order_data  # noqa: PLC0415

    wanted = Order({name: best.profiles[name] for name in shares})
    data = order_data([OrderRule(product, wanted)])
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None).rstrip()
