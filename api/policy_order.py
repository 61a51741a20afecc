"""The order of partitions in the node policy: which placement the scheduler sees first.

Example::

    order:
    - product: "NVIDIA H100*"        # the first entry that matches a card's product decides
      profiles:
        1g.10gb:                     # one or more passes over the cards
        - up: [6, 5, 4]              # from the first card to the last, these starts on each
        - up: [3, 2, 1, 0]           # then all cards again
        3g.40gb:
        - down: [4]                  # from the last card to the first
        - down: [0]

Cards are in the order of their PCI addresses. A profile that is not named keeps the order of the
driver's own table. ``aliquot plan order`` writes this for a mix of claims.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.reading import Reader, join, names

DIRECTIONS = ("up", "down")
_ENTRY = ("product", "profiles")
_LAST_START = 63  # no card has so many memory slices; what a card has, the driver checks


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over all cards; on each the starts (in memory slices), one after the other."""

    starts: tuple[int, ...]
    down: bool = False  # from the last card to the first


@dataclass(frozen=True, slots=True)
class Order:
    """For each profile the passes that together list every placement once."""

    profiles: Mapping[str, tuple[Pass, ...]]


@dataclass(frozen=True, slots=True)
class OrderRule:
    """An order and the products it is for (a shell pattern, letter case counts)."""

    product: str
    order: Order


def read_order_rules(reader: Reader, path: str, value: object) -> tuple[OrderRule, ...]:
    """The policy's ``order``; what is wrong is added to ``reader.problems``."""
    entries = enumerate(reader.items(path, value, "a list of entries with product and profiles"))
    return tuple(_rule(reader, f"{path}[{i}]", raw) for i, raw in entries)


def _rule(reader: Reader, path: str, value: object) -> OrderRule:
    raw = reader.mapping(path, value, "a mapping with product and profiles")
    if isinstance(value, Mapping):
        reader.only(path, raw, _ENTRY)
        reader.problems += [f"{join(path, key)}: missing" for key in _ENTRY if key not in raw]
    product = None
    if "product" in raw:
        product = reader.text(join(path, "product"), raw["product"], "a pattern of product names")
    return OrderRule(product or "", read_order(reader, join(path, "profiles"), raw))


def read_order(reader: Reader, path: str, raw: Mapping[Any, Any]) -> Order:
    """The mapping ``profiles`` of ``raw``: profile names to lists of passes."""
    found = {}
    given = raw.get("profiles", {})
    for name, passes in reader.mapping(path, given, "a mapping of profiles to passes").items():
        where = join(path, name)
        if not isinstance(name, str) or not name:
            reader.wrong(where, name, "the name of a profile, such as 1g.10gb; quote it")
            continue
        found[name] = _passes(reader, where, passes)
    return Order(found)


def _passes(reader: Reader, path: str, value: object) -> tuple[Pass, ...]:
    raw = reader.items(path, value, "a list of passes, such as [{up: [0, 1]}]")
    if value == []:
        reader.problems.append(f"{path}: no pass; leave the profile out to keep its usual order")
    passes = tuple(_pass(reader, f"{path}[{i}]", each) for i, each in enumerate(raw))
    seen: set[int] = set()
    for start in (start for each in passes for start in each.starts):
        if start in seen:
            reader.problems.append(f"{path}: start {start} stands here twice")
        seen.add(start)
    return passes


def _pass(reader: Reader, path: str, value: object) -> Pass:
    raw = reader.mapping(path, value, "a mapping with up or down and a list of starts")
    if not isinstance(value, Mapping):
        return Pass(())
    reader.only(path, raw, DIRECTIONS)
    given = [key for key in DIRECTIONS if key in raw]
    if len(given) != 1:
        reader.wrong(path, value, f"exactly one of {names(DIRECTIONS)}")
        return Pass(())
    where = join(path, given[0])
    starts = reader.items(where, raw[given[0]], "a list of starts")
    if raw[given[0]] == []:
        reader.problems.append(f"{where}: no start")
    read = [reader.integer(f"{where}[{i}]", s, 0, _LAST_START) for i, s in enumerate(starts)]
    return Pass(tuple(s for s in read if s is not None), given[0] == "down")


def order_data(rules: Sequence[OrderRule]) -> dict[str, Any]:
    """Plain data that ``read_order_rules`` reads back, below the key ``order``."""
    return {
        "order": [
            {
                "product": rule.product,
                "profiles": {
                    name: [{DIRECTIONS[each.down]: list(each.starts)} for each in passes]
                    for name, passes in rule.order.profiles.items()
                },
            }
            for rule in rules
        ]
    }
