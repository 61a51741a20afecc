"""Events that never get in the way: queued, repeated ones counted, errors only logged."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from kubeletplugin.contract import Object
from kubeletplugin.kube import ApiError, KubeClient

log = logging.getLogger(__name__)

NORMAL, WARNING = "Normal", "Warning"
SAME_FOR_S = 600.0  # equal events within this time are one with a count
MAX_QUEUED = 256
MAX_REMEMBERED = 4096
MAX_NOTE = 1024  # characters, as events.k8s.io checks
DRAIN_S = 2.0

_Key: TypeAlias = tuple[str, str, str, str]


@dataclass(slots=True)
class _Told:
    body: Object
    first_at: float  # clock
    count: int = 1
    path: str = ""  # of the stored Event, "" before that
    queued: bool = True


class EventRecorder:
    """``emit`` from anywhere in the event loop; ``close`` at the end."""

    def __init__(
        self,
        client: KubeClient,
        component: str,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``component`` is the reporting controller (the driver's name), ``instance`` the node."""
        self.dropped = 0
        """Events lost to a full queue."""
        self._client = client
        self._component = component
        self._instance = instance
        self._clock = clock
        self._told: dict[_Key, _Told] = {}
        self._queue: asyncio.Queue[_Told] = asyncio.Queue(MAX_QUEUED)
        self._task: asyncio.Task[None] | None = None

    def emit(self, regarding: Object, type: str, reason: str, note: str) -> None:
        """``regarding``: an object, or a reference (apiVersion, kind, name, namespace, uid).

        ``type`` is ``NORMAL`` or ``WARNING``, ``reason`` a CamelCase word. The same again within
        ten minutes becomes the count of the first; the count is written at 2, 4, 8, …
        """
        reference = _reference(regarding)
        note = note if len(note) <= MAX_NOTE else note[: MAX_NOTE - 1] + "…"
        key = (reference.get("uid") or str(reference), type, reason, note)
        told = self._told.get(key)
        if told is not None and self._clock() - told.first_at < SAME_FOR_S:
            told.count += 1
            if told.queued or told.count & (told.count - 1):
                return
            told.queued = True
        else:
            told = _Told(self._event(reference, type, reason, note), self._clock())
            self._remember(key, told)
        self._enqueue(told)

    async def close(self) -> None:
        """Wait a moment for what is queued."""
        task, self._task = self._task, None
        if task is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), DRAIN_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _remember(self, key: _Key, told: _Told) -> None:
        self._told.pop(key, None)
        self._told[key] = told
        if len(self._told) > MAX_REMEMBERED:
            self._told.pop(next(iter(self._told)))

    def _enqueue(self, told: _Told) -> None:
        try:
            self._queue.put_nowait(told)
        except asyncio.QueueFull:
            told.queued = False
            self.dropped += 1
            return
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="write Events")

    async def _work(self) -> None:
        while True:
            told = await self._queue.get()
            told.queued = False
            try:
                await self._write(told)
            except ApiError as error:
                log.warning("Event %s not written: %s", told.body["reason"], error)
            except Exception:
                log.exception("Event %s not written", told.body["reason"])
            finally:
                self._queue.task_done()

    async def _write(self, told: _Told) -> None:
        namespace = told.body["metadata"]["namespace"]
        collection = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        if told.path:
            series = {"count": told.count, "lastObservedTime": _now()}
            await self._client.merge_patch(told.path, {"series": series})
            return
        if told.count > 1:  # repeated before it could be written
            told.body["series"] = {"count": told.count, "lastObservedTime": _now()}
        stored = await self._client.create(collection, told.body)
        told.path = f"{collection}/{stored['metadata']['name']}"

    def _event(self, reference: Object, type_: str, reason: str, note: str) -> Object:
        name = f"{reference.get('name', 'unknown')[:200]}.{secrets.token_hex(8)}"
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": reference.get("namespace") or "default"},
            "eventTime": _now(),
            "type": type_,
            "reason": reason,
            "action": reason,
            "note": note,
            "regarding": reference,
            "reportingController": self._component,
            "reportingInstance": self._instance,
        }


def _reference(regarding: Object) -> Object:
    source = {**regarding, **(regarding.get("metadata") or {})}
    fields = ("apiVersion", "kind", "namespace", "name", "uid")
    return {field: source[field] for field in fields if source.get(field)}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
