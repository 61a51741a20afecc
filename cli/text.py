"""Plain text for terminals: aligned tables, coloured words.

``click.echo`` takes colours out again where the output is not a terminal.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import click

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def width(text: str) -> int:
    """Columns of ``text``, colours not counted."""
    return len(_ESCAPES.sub("", text))


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 0) -> list[str]:
    """Lines with columns as wide as their widest cell; the last one is not padded."""
    body = [list(row) for row in rows]
    columns = list(zip(headers, *body, strict=True))
    widths = [max(width(cell) for cell in column) for column in columns]
    head = [click.style(header, bold=True) for header in headers]
    return [_line(cells, widths, indent) for cells in (head, *body)]


def _line(cells: Sequence[str], widths: Sequence[int], indent: int) -> str:
    padded = (cell + " " * (wide - width(cell)) for cell, wide in zip(cells, widths, strict=True))
    return (" " * indent + "  ".join(padded)).rstrip()


def state(word: str) -> str:
    """``ok``, ``warn`` or ``fail`` in its colour."""
    return click.style(word, fg=_COLOURS.get(word), bold=word == "fail")


def plural(count: int, noun: str) -> str:
    """``1 card``, ``8 cards``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortened(lines: Sequence[str], most: int, what: str) -> Iterator[str]:
    """At most ``most`` of ``lines``, then how many of ``what`` are not shown."""
    yield from lines[:most]
    if len(lines) > most:
        yield f"… and {plural(len(lines) - most, what)} more"
