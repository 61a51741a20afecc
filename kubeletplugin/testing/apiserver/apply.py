"""Server-side apply, as far as drivers use it (structured merge of maps and keyed lists).

Ownership is kept as the last configuration each manager applied to an object: what it applied
before and leaves out now is removed. Unlike the real server, fields written by create and update
are nobody's, so an apply never conflicts with them, and no ``managedFields`` are shown.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from kubeletplugin.contract import Object

Path: TypeAlias = tuple[str, ...]

# Lists that merge by key (+listMapKey in the types); all others are atomic.
_KEYED: dict[Path, Path] = {
    ("status", "devices"): ("driver", "device", "pool", "shareID"),
    ("status", "devices", "conditions"): ("type",),
    ("status", "reservedFor"): ("uid",),
    ("metadata", "ownerReferences"): ("uid",),
    ("status", "conditions"): ("type",),
}
_IDENTITY = ("apiVersion", "kind")


def merge(live: Object, config: Object, before: Object | None) -> Object:
    """``live`` with ``config`` applied by a manager whose last configuration was ``before``."""
    merged = _merge((), live, config, before or {})
    assert isinstance(merged, dict)  # noqa: S101  (both are objects)
    return merged


def disagreements(config: Object, others: Mapping[str, Object]) -> list[str]:
    """Fields of ``config`` that another manager applied with another value."""
    mine = dict(_leaves((), config))
    return sorted(
        f'conflict with "{manager}": .{".".join(path)}'
        for manager, theirs in others.items()
        for path, value in _leaves((), theirs)
        if path in mine and mine[path] != value
    )


def _merge(path: Path, live: Any, config: Any, before: Any) -> Any:
    if isinstance(config, dict) and isinstance(live, dict):
        old = before if isinstance(before, dict) else {}
        kept = {key: value for key, value in live.items() if key in config or key not in old}
        for key, value in config.items():
            kept[key] = _merge((*path, key), live.get(key), value, old.get(key))
        return kept
    if isinstance(config, list) and path in _KEYED:
        return _merge_list(path, live or [], config, before or [])
    return copy.deepcopy(config)


def _merge_list(
    path: Path, live: list[Object], config: list[Object], before: list[Object]
) -> list[Object]:
    new, old = _by_key(path, config), _by_key(path, before)
    kept = {key: item for key, item in _by_key(path, live).items() if key in new or key not in old}
    for key, item in new.items():
        kept[key] = _merge(path, kept.get(key), item, old.get(key))
    return list(kept.values())


def _by_key(path: Path, items: list[Object]) -> dict[Path, Object]:
    return {tuple(str(item.get(field, "")) for field in _KEYED[path]): item for item in items}


def _leaves(path: Path, value: Any, real: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if real or key not in (*_IDENTITY, "metadata"):
                yield from _leaves((*path, key), inner, (*real, key))
    elif isinstance(value, list) and real in _KEYED:
        for key, inner in _by_key(real, value).items():
            yield from _leaves((*path, ",".join(key)), inner, real)
    else:
        yield path, value
