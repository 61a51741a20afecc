"""``python -m bench prepare|node|lanes|all``: boot a cluster, measure, print tables.

Nothing here fails because of a time: a table says what is over its budget.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from bench import prepare
from bench.booted import Bed, bed

Measurement = Callable[[Bed, int], dict[str, Any]]

_ALL: Mapping[str, Measurement] = {
    "prepare": prepare.claim_by_claim,
    "many": prepare.many,
}


@click.command(help=__doc__)
@click.argument("what", nargs=-1, type=click.Choice([*_ALL, "all"]), required=True)
@click.option("--count", type=click.IntRange(1), default=200, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="A file for every value, as JSON.")
def main(what: tuple[str, ...], count: int, out: Path | None) -> None:
    """See the module."""
    found: dict[str, Any] = {}
    with bed() as here:
        for name in _ALL if "all" in what else what:
            found[name] = _ALL[name](here, count)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
