"""What is wrong with a pool before anything of it is published.

Limits are those of ``kubernetes/pkg/apis/resource/validation/validation.go``; uniqueness in the
pool is what the scheduler's allocator needs, which the API server cannot see.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubeletplugin.contract import DesiredPool, DesiredSlice

MAX_DEVICES = 128
MAX_SPECIAL_DEVICES = 64  # as soon as one has taints or counters (1.35+)
MAX_ENTRIES = 32  # attributes and capacities of a device, counters of a set
MAX_COUNTER_SETS = 8  # of a ResourceSlice (1.35+)
MAX_CONSUMED_SETS = 2  # of a device (1.35+)
MAX_TAINTS = 16  # 4 in 1.34

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


class PublishError(Exception):
    """The pool must not be published as it is. Carries every problem found."""

    def __init__(self, pool: str, problems: Sequence[str]) -> None:
        super().__init__(f"pool {pool} is not published: " + "; ".join(problems))
        self.problems = tuple(problems)


def check_pool(desired: DesiredPool) -> None:
    """Raises ``PublishError`` with all problems."""
    problems = [*_names(desired), *_references(desired)]
    for part in desired.slices:
        problems += _limits(part)
    if problems:
        raise PublishError(desired.name, problems)


def _names(desired: DesiredPool) -> Iterator[str]:
    keys = [part.key for part in desired.slices]
    devices = [str(found.get("name", "")) for part in desired.slices for found in part.devices]
    sets = [
        str(found.get("name", "")) for part in desired.slices for found in part.shared_counters
    ]
    for what, names in (("ResourceSlice key", keys), ("device", devices), ("counter set", sets)):
        for name, count in Counter(names).items():
            if not _LABEL.fullmatch(name):
                yield f"{what} name {name!r} is not a DNS label"
            if count > 1:
                yield f"{what} name {name!r} is used {count} times in the pool"


def _references(desired: DesiredPool) -> Iterator[str]:
    sets: dict[str, Mapping[str, Any]] = {
        str(found.get("name")): found.get("counters") or {}
        for part in desired.slices
        for found in part.shared_counters
    }
    for part in desired.slices:
        for device in part.devices:
            for use in device.get("consumesCounters") or ():
                yield from _missing(str(device.get("name")), use, sets)


def _missing(
    device: str, use: Mapping[str, Any], sets: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    wanted = str(use.get("counterSet"))
    if wanted not in sets:
        yield f"device {device} consumes from counter set {wanted!r}, which the pool does not have"
        return
    for counter in use.get("counters") or {}:
        if counter not in sets[wanted]:
            yield f"device {device} consumes counter {counter!r}, which {wanted!r} does not have"


def _limits(part: DesiredSlice) -> Iterator[str]:
    special = any(found.get("taints") or found.get("consumesCounters") for found in part.devices)
    where = f"ResourceSlice {part.key}"
    limit = MAX_SPECIAL_DEVICES if special else MAX_DEVICES
    why = " with taints or counters" if special else ""
    yield from _over(f"{where}: devices{why}", len(part.devices), limit)
    yield from _over(f"{where}: counter sets", len(part.shared_counters), MAX_COUNTER_SETS)
    for found in part.shared_counters:
        count = len(found.get("counters") or {})
        if not count:
            yield f"counter set {found.get('name')}: no counters; leave the set out"
        yield from _over(f"counter set {found.get('name')}: counters", count, MAX_ENTRIES)
    for device in part.devices:
        name = f"device {device.get('name')}"
        entries = len(device.get("attributes") or {}) + len(device.get("capacity") or {})
        yield from _over(f"{name}: attributes and capacities", entries, MAX_ENTRIES)
        consumed = len(device.get("consumesCounters") or ())
        yield from _over(f"{name}: counter sets consumed", consumed, MAX_CONSUMED_SETS)
        yield from _over(f"{name}: taints", len(device.get("taints") or ()), MAX_TAINTS)


def _over(what: str, count: int, limit: int) -> Iterator[str]:
    if count > limit:
        yield f"{what}: {count}, at most {limit} are allowed"
