"""How the stand-in misbehaves: ``<program>.json`` beside it, or ``ALIQUOT_STANDIN_*``.

hang            "start": the daemon opens nothing; "front": a front end never ends;
                "answer": the daemon takes connections and says nothing
exits           the daemon ends with this status at once
slow_start_s    seconds before the daemon opens its sockets
server_fails    servers end with status 1
ignores         words of commands that are taken without a word and without effect
"""

import contextlib
import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Knobs:
    """See the module."""

    hang: str = ""
    exits: int | None = None
    slow_start_s: float = 0.0
    server_fails: bool = False
    ignores: tuple[str, ...] = ()


def read(program: Path) -> Knobs:
    """The file wins over the environment."""
    found: dict[str, Any] = {}
    for field in fields(Knobs):
        if (text := os.environ.get(f"ALIQUOT_STANDIN_{field.name.upper()}")) is not None:
            found[field.name] = _value(text)
    with contextlib.suppress(FileNotFoundError):
        found |= json.loads(program.with_name(f"{program.name}.json").read_text())
    if "ignores" in found:
        found["ignores"] = tuple(found["ignores"])
    return Knobs(**found)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
