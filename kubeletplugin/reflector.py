"""A local copy of a collection, kept by list and watch."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kubeletplugin.contract import Object
from kubeletplugin.kube import ApiError, KubeClient, Query

log = logging.getLogger(__name__)

OnEvent: TypeAlias = Callable[[str, Object], None]  # ADDED, MODIFIED, DELETED and the object


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between things."""

    relist: float = 60.0  # an authoritative list, whatever the watch says; 0: only when needed
    backoff: float = 0.2  # after the first failure, doubling
    backoff_max: float = 30.0
    calm: float = 5.0  # a watch that ends sooner counts as a failure: else clients spin


class Reflector:
    """Keeps ``store`` (by UID) equal to the server and tells ``on_event`` every change.

    Bookmarks move the resume point; 410 and the periodic list compare with the copy, so deletions
    in a gap are told too. Failures back off with jitter and honour Retry-After, also when the
    server ends each watch at once.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        on_event: OnEvent | None = None,
        *,
        query: Query = (),
        pace: Pace | None = None,
    ) -> None:
        self.store: dict[str, Object] = {}
        self.synced = asyncio.Event()
        """Set when ``store`` is complete for the first time."""
        self.live = False
        """A watch is running: ``store`` is as fresh as the server's own watch cache."""
        self.last_error: ApiError | None = None
        self._client = client
        self._path = path
        self._on_event = on_event
        self._query = tuple(query)
        self._pace = pace or Pace()
        self._version = ""  # "": list before the next watch
        self._list_due = 0.0
        self._failures = 0

    async def run(self) -> None:
        """Until cancelled. Never raises otherwise."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                if not self._version or (self._pace.relist and loop.time() >= self._list_due):
                    await self._list()
                await self._watch()
            except ApiError as error:
                await self._failed(error)

    async def _list(self) -> None:
        items, version = await self._client.list_pages(self._path, self._query)
        found = {item["metadata"]["uid"]: item for item in items}
        before, self.store, self._version = self.store, found, version
        spread = random.uniform(0.9, 1.1)  # noqa: S311  (a thousand nodes must not list at once)
        self._list_due = asyncio.get_running_loop().time() + self._pace.relist * spread
        self.last_error = None
        self.synced.set()
        for uid in before.keys() - found.keys():
            self._tell("DELETED", before[uid])
        for uid, item in found.items():
            if uid not in before:
                self._tell("ADDED", item)
            elif _version(before[uid]) != _version(item):
                self._tell("MODIFIED", item)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        seconds = random.uniform(240, 480)  # noqa: S311
        if self._pace.relist:
            seconds = min(seconds, max(self._list_due - started, 0.0))
        seconds = max(1, round(seconds))
        query = [
            *self._query,
            ("resourceVersion", self._version),
            ("timeoutSeconds", str(seconds)),
        ]
        try:
            async for event in self._client.watch(self._path, query, self._opened):
                self._take(event)
                if self._pace.relist and loop.time() > self._list_due + self._pace.calm:
                    break  # the server pays no heed to timeoutSeconds
        finally:
            self.live = False
        if loop.time() - started < min(self._pace.calm, 0.8 * seconds):
            await self._back_off(0.0)
        else:
            self._failures = 0

    def _opened(self) -> None:
        self.live = True

    def _take(self, event: Object) -> None:
        kind, item = event["type"], event["object"]
        self._version = _version(item)
        if kind == "BOOKMARK":
            return
        uid = item["metadata"]["uid"]
        if kind == "DELETED":
            self.store.pop(uid, None)
        else:
            self.store[uid] = item
        self._tell(kind, item)

    async def _failed(self, error: ApiError) -> None:
        if error.code == 410:
            self._version = ""
        else:
            log.warning("watch of %s: %s", self._path, error)
        self.last_error = error
        await self._back_off(error.retry_after or 0.0)

    async def _back_off(self, at_least: float) -> None:
        wait = min(self._pace.backoff_max, self._pace.backoff * 2 ** min(self._failures, 16))
        self._failures += 1
        await asyncio.sleep(max(at_least, wait * random.uniform(0.5, 1.5)))  # noqa: S311

    def _tell(self, kind: str, item: Object) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(kind, item)
        except Exception:
            log.exception("handler of a %s event of %s", kind, self._path)


def _version(item: Object) -> str:
    return str(item["metadata"]["resourceVersion"])
