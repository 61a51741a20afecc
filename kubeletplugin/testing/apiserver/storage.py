"""Objects with resource versions and a log of changes, as etcd and the watch cache keep them."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kubeletplugin.contract import Object

Key: TypeAlias = tuple[str, str, str]  # plural, namespace ("" for cluster scope), name
_LOG_LIMIT = 20_000


class CompactedError(Exception):
    """Changes after this version are no longer all known (HTTP 410 Expired)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write. ``before`` is the object as it was, None for a new one."""

    version: int
    kind: str  # ADDED, MODIFIED, DELETED
    key: Key
    after: Object
    before: Object | None


class Store:
    """Objects given in and out belong to the store: copy before changing one."""

    def __init__(self) -> None:
        self.version = 1
        self._objects: dict[Key, Object] = {}
        self._log: list[Change] = []
        self._compacted = 0  # changes up to this version may be missing from the log
        self.pulse = asyncio.Event()
        """Set at the next change; take it before reading the log, a new one follows each."""

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def items(self, plural: str, namespace: str | None = None) -> list[Object]:
        """In the order of keys (namespace, name), as etcd lists them."""
        return [
            found
            for (kind, space, _), found in sorted(self._objects.items(), key=lambda item: item[0])
            if kind == plural and namespace in (None, space)
        ]

    def put(self, key: Key, content: Object) -> Object:
        before = self._objects.get(key)
        stored = self._stamped(content)
        self._objects[key] = stored
        self._record(Change(self.version, "MODIFIED" if before else "ADDED", key, stored, before))
        return stored

    def remove(self, key: Key) -> Object:
        before = self._objects.pop(key)
        last = self._stamped(before)
        self._record(Change(self.version, "DELETED", key, last, before))
        return last

    def changes(self, plural: str, after: int) -> Iterator[Change]:
        """Changes of ``plural`` later than version ``after``. Raises ``CompactedError``."""
        if after < self._compacted:
            raise CompactedError(f"too old resource version: {after} ({self._compacted})")
        start = bisect_right(self._log, after, key=lambda change: change.version)
        return (change for change in self._log[start:] if change.key[0] == plural)

    def compact(self) -> None:
        """Forget all changes so far: watches and lists from older versions answer 410."""
        self._log.clear()
        self._compacted = self.version

    @property
    def compacted(self) -> int:
        return self._compacted

    def _stamped(self, content: Object) -> Object:
        self.version += 1
        metadata = {**content["metadata"], "resourceVersion": str(self.version)}
        return {**content, "metadata": metadata}

    def _record(self, change: Change) -> None:
        self._log.append(change)
        if len(self._log) > _LOG_LIMIT:
            self._compacted = self._log[_LOG_LIMIT // 2].version
            del self._log[: _LOG_LIMIT // 2 + 1]
        pulse, self.pulse = self.pulse, asyncio.Event()
        pulse.set()
