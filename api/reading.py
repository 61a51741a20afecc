"""Small helpers for strict readers: every problem is collected, each with its path."""

import reprlib
from collections.abc import Collection, Mapping
from typing import Any

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 60
_BRIEF.maxdict = _BRIEF.maxlist = 4


def show(value: object) -> str:
    """``value`` as one short line for a message; JSON's names for null, true and false."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _BRIEF.repr(value)


def join(path: str, key: object) -> str:
    """The path of ``key`` below ``path``; keys that are no plain names come in brackets."""
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{show(key)}]"


def names(choices: Collection[str]) -> str:
    """``choices`` for a message."""
    return ", ".join(choices)


class Reader:
    """Reads fields of decoded JSON or YAML; wrong ones become ``problems`` and a default."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def wrong(self, path: str, value: object, wanted: str) -> None:
        self.problems.append(f"{path or 'document'}: got {show(value)}, want {wanted}")

    def only(self, path: str, raw: Mapping[Any, Any], known: Collection[str]) -> None:
        """Report each key of ``raw`` that is not ``known``."""
        for key in raw:
            if key not in known:
                self.problems.append(f"{join(path, key)}: unknown field; known: {names(known)}")

    def mapping(self, path: str, value: object, wanted: str = "an object") -> Mapping[Any, Any]:
        if isinstance(value, Mapping):
            return value
        self.wrong(path, value, wanted)
        return {}

    def items(self, path: str, value: object, wanted: str = "a list") -> list[Any]:
        if isinstance(value, list):
            return value
        self.wrong(path, value, wanted)
        return []

    def choice(self, path: str, value: object, choices: Collection[str]) -> str | None:
        if isinstance(value, str) and value in choices:
            return value
        self.wrong(path, value, f"one of {names(choices)}")
        return None

    def integer(self, path: str, value: object, low: int, high: int) -> int | None:
        """A whole number from ``low`` to ``high``; true and false are none."""
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.wrong(path, value, f"a whole number from {low} to {high}")
        return None

    def text(self, path: str, value: object, wanted: str = "a text") -> str | None:
        if isinstance(value, str) and value:
            return value
        self.wrong(path, value, wanted)
        return None
