"""Reading and writing the objects of the journal's JSON, field by field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.reading import join, names, show


class JournalError(ValueError):
    """The text begins with the path of the field that is wrong."""


class Fields:
    """A JSON object whose fields are read one by one; the first wrong one raises."""

    def __init__(self, path: str, raw: object) -> None:
        if not isinstance(raw, dict):
            raise JournalError(f"{path or 'record'}: got {show(raw)}, want an object")
        self.path = path
        self.raw: dict[str, Any] = raw

    def has(self, key: str) -> bool:
        return key in self.raw

    def value(self, key: str) -> Any:
        if key not in self.raw:
            raise JournalError(f"{join(self.path, key)}: missing")
        return self.raw[key]

    def wrong(self, key: str, wanted: str) -> JournalError:
        return JournalError(f"{join(self.path, key)}: got {show(self.raw[key])}, want {wanted}")

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "a text")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.value(key)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(key, f"one of {names(choices)}")
        return value

    def integer(self, key: str) -> int:
        value = self.value(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(key, "a whole number, 0 or more")
        return value

    def flag(self, key: str) -> bool:
        value = self.raw.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def items(self, key: str) -> "list[Fields]":
        value = self.value(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        path = join(self.path, key)
        return [Fields(f"{path}[{i}]", item) for i, item in enumerate(value)]


@dataclass(frozen=True, slots=True)
class Form:
    """How a field is called in JSON and read back."""

    key: str
    read: Callable[[Fields, str], Any]
    needed: bool = False


def encode(value: object, form: Mapping[str, Form]) -> dict[str, Any] | None:
    """The fields of ``form`` that ``value`` has; None where there is no value."""
    if value is None:
        return None
    found = {each.key: getattr(value, name) for name, each in form.items()}
    return {key: each for key, each in found.items() if each is not None and each is not False}


def decode(fields: Fields, key: str, form: Mapping[str, Form]) -> dict[str, Any] | None:
    """What ``encode`` wrote below ``key``, as arguments; None where it is not there."""
    if not fields.has(key):
        return None
    return arguments(Fields(join(fields.path, key), fields.value(key)), form)


def arguments(fields: Fields, form: Mapping[str, Form]) -> dict[str, Any]:
    return {
        name: each.read(fields, each.key)
        for name, each in form.items()
        if each.needed or fields.has(each.key)
    }
