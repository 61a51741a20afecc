"""``python -m bench prepare|partitions|shares|scheduling|node|mps|all``: measure, print tables.

All but mps boot a cluster first.

Nothing here fails because of a time: a table says what is over its budget.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench import lanes, node, partitions, prepare, scheduling, shares, supervisor
from bench.booted import Bed, bed


@dataclass(frozen=True, slots=True)
class Size:
    """How long to measure."""

    count: int
    minutes: float


_PARTS: Mapping[str, Callable[[Bed, Size], dict[str, Any]]] = {
    "prepare": lambda bed, size: {
        "one": prepare.claim_by_claim(bed, size.count),
        "many": prepare.many(bed, size.count),
        "lanes": lanes.slow_card(bed, size.count),
    },
    "partitions": lambda bed, size: {"made": partitions.made(bed, size.count)},
    "shares": lambda bed, size: {"shared": shares.shared(bed, size.count)},
    "scheduling": lambda bed, size: {"cpu": scheduling.cpu(bed, size.count)},
    "node": lambda bed, size: {
        "starts": node.starts(bed),
        "memory": node.weight(bed),
        "idle": node.idle(bed, size.minutes),
    },
}


_ALONE: Mapping[str, Callable[[], dict[str, Any]]] = {"mps": supervisor.measure}  # no cluster


@click.command(help=__doc__)
@click.argument("what", nargs=-1, type=click.Choice([*_PARTS, *_ALONE, "all"]), required=True)
@click.option("--count", type=click.IntRange(1), default=200, show_default=True)
@click.option(
    "--minutes", type=float, default=1.0, show_default=True, help="Idle time without API writes."
)
@click.option("--out", type=click.Path(path_type=Path), help="A file for every value, as JSON.")
def main(what: tuple[str, ...], count: int, minutes: float, out: Path | None) -> None:
    """See the module."""
    asked = (*_ALONE, *_PARTS) if "all" in what else what
    found: dict[str, Any] = {name: _ALONE[name]() for name in asked if name in _ALONE}
    if on_cluster := [name for name in asked if name in _PARTS]:
        with bed() as here:
            found |= {name: _PARTS[name](here, Size(count, minutes)) for name in on_cluster}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
