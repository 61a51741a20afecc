"""Keeps the node's ResourceSlices as the driver wants them.

Planning is ``plan_publish``; this module only knows when to look and what to do with errors.
Every look is an authoritative LIST. The watch only says when to look, so a lost or late event
costs time, never correctness (kubernetes#140011 is what a cache of own writes can cost).
ResourceSlices are not deleted at the end: the kubelet does that 30 s after the driver left.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from kubeletplugin.contract import DesiredPool, DesiredSlice, Object
from kubeletplugin.dropped import dropped_features, explain
from kubeletplugin.kube import ApiError, KubeClient
from kubeletplugin.plan_publish import (
    EMPTY,
    Identity,
    PublishPlan,
    plan_checked,
    same_content,
    slice_name,
)
from kubeletplugin.probe import SLICES
from kubeletplugin.publish_checks import check_pool
from kubeletplugin.publish_clock import Clock, Timing
from kubeletplugin.reflector import Pace, Reflector

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishStatus:
    """For readiness, metrics and logs."""

    published: bool  # what the driver wants now is what the API server has
    generation: int  # of the pool, 0 before the first publication
    slices: int
    devices: int
    error: str | None  # why not, None while all is well


class Publisher:
    """``set_pool``, ``set_registered(True)``, and ``run`` as a task."""

    def __init__(
        self,
        client: KubeClient,
        identity: Identity,
        *,
        on_dropped: Callable[[frozenset[str]], None] | None = None,
        on_error: Callable[[str], None] | None = None,
        timing: Timing | None = None,
    ) -> None:
        """``on_dropped`` hears which features (``kubeletplugin.probe``) the API server lost; it
        may call ``set_pool``, and nothing more of the old pool is written then. ``on_error``
        hears each new text of ``last_error``."""
        self.published = asyncio.Event()
        self.last_error: str | None = None
        self._client = client
        self._identity = identity
        self._on_dropped = on_dropped
        self._on_error = on_error
        self._clock = Clock(timing or Timing())
        self._desired: DesiredPool | None = None
        self._effective: DesiredPool | None = None  # less what the server will not keep
        self._registered = False
        self._generation = 0
        self._known: dict[str, str] = {}  # resourceVersion by UID, as of our last look or write
        self._looking = False
        self._early: list[tuple[str, Object]] = []  # events that came while we wrote
        self._task: asyncio.Task[None] | None = None
        self._selector = [
            (
                "fieldSelector",
                f"spec.driver={identity.driver},spec.nodeName={identity.node_name}",
            )
        ]

    @property
    def status(self) -> PublishStatus:
        slices = self._effective.slices if self._effective else ()
        return PublishStatus(
            self.published.is_set(),
            self._generation,
            len(slices) or int(self._effective is not None),
            sum(len(part.devices) for part in slices),
            self.last_error,
        )

    def set_pool(self, desired: DesiredPool) -> None:
        """From now on publish this. Raises ``PublishError`` and keeps the old pool then."""
        if desired == self._desired:
            return
        check_pool(desired)
        self._desired = self._effective = desired
        self.published.clear()
        self._clock.now()

    def set_registered(self, registered: bool) -> None:
        """Only while the kubelet knows the plugin: else the kubelet deletes what we publish."""
        if registered and not self._registered:
            self._clock.now()
        self._registered = registered

    def resync(self) -> None:
        """Look at once."""
        self._clock.now()

    async def run(self) -> None:
        """Until cancelled or ``stop``."""
        self._task = asyncio.current_task()
        watch = Reflector(
            self._client,
            SLICES,
            self._noticed,
            query=self._selector,
            pace=Pace(relist=0.0, backoff_max=self._clock.timing.backoff_max_s),
        )
        watching = asyncio.create_task(watch.run(), name="watch ResourceSlices")
        try:
            while True:
                await self._clock.wait()
                if self._registered and self._effective is not None:
                    await self._look()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    async def stop(self) -> None:
        """Cancel ``run`` and wait for its end. ResourceSlices stay."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look(self) -> None:
        self._looking = True
        try:
            settled = await self._sync()
        except ApiError as error:
            self._failed(error)
        else:
            if settled:
                self.published.set()
                self._report(None)
        finally:
            self._looking = False
        early, self._early = self._early, []
        for kind, found in early:
            self._noticed(kind, found)

    async def _sync(self) -> bool:
        """False if the driver changed its mind on the way."""
        desired, effective = self._desired, self._effective
        assert effective is not None  # noqa: S101  (checked by the caller, nothing awaited since)
        items, _ = await self._client.list_pages(SLICES, self._selector)
        self._known = {found["metadata"]["uid"]: _version(found) for found in items}
        plan = plan_checked(effective, items, self._identity)
        if plan.create and await self._owner_changed():
            plan = plan_checked(effective, items, self._identity)
        if plan:
            self.published.clear()
        if self._desired is not desired or not await self._execute(plan):
            return False
        self._generation = plan.generation
        self._clock.done(bool(plan))
        return self._desired is desired

    async def _execute(self, plan: PublishPlan) -> bool:
        before = self._desired
        for found in plan.delete:
            await self._delete(found)
        for found in plan.update:
            path = f"{SLICES}/{found['metadata']['name']}"
            self._written(found, await self._client.update(path, found))
            if self._desired is not before:
                return False
        for found in plan.create:
            self._written(found, await self._client.create(SLICES, found))
            if self._desired is not before:
                return False
        return True

    async def _delete(self, found: Object) -> None:
        metadata = found["metadata"]
        try:
            await self._client.delete(
                f"{SLICES}/{metadata['name']}",
                uid=metadata["uid"],
                resource_version=metadata["resourceVersion"],
            )
        except ApiError as error:
            if error.code != 404:
                raise
        self._known.pop(metadata["uid"], None)

    def _written(self, wanted: Object, stored: Object) -> None:
        """Compare: with a feature gate off the server drops fields without an error. What it
        keeps counts as wanted until the driver wants something else, else we would loop."""
        self._known[stored["metadata"]["uid"]] = _version(stored)
        part = self._part(stored["metadata"]["name"])
        if self._effective is None or part is None or same_content(part, stored):
            return
        if not same_content(part, wanted):
            return  # the driver wants something else by now; the next look compares again
        spec = stored["spec"]
        kept = replace(
            part,
            devices=tuple(spec.get("devices") or ()),
            shared_counters=tuple(spec.get("sharedCounters") or ()),
        )
        slices = tuple(kept if one is part else one for one in self._effective.slices)
        self._effective = replace(self._effective, slices=slices)
        features = dropped_features(wanted["spec"], spec)
        log.warning("ResourceSlice %s: %s", stored["metadata"]["name"], explain(features))
        if self._on_dropped is not None:
            self._on_dropped(features)

    def _part(self, name: str) -> DesiredSlice | None:
        parts = (self._effective.slices if self._effective else ()) or (EMPTY,)
        return next((one for one in parts if slice_name(self._identity, one.key) == name), None)

    async def _owner_changed(self) -> bool:
        """Read the Node's UID; it may be another Node of the same name by now."""
        node = self._identity.node_name
        try:
            found = await self._client.get(f"/api/v1/nodes/{node}")
        except ApiError as error:
            if error.code not in (403, 404):
                raise
            uid = None
            log.warning(
                "ResourceSlices are published without an owner, so they will outlive the Node: %s",
                error,
            )
        else:
            uid = found["metadata"]["uid"]
        changed = uid != self._identity.node_uid
        self._identity = replace(self._identity, node_uid=uid)
        return changed

    def _noticed(self, kind: str, found: Object) -> None:
        """A watch event. Our own writes come back too, often before their answer is read."""
        if self._looking:
            self._early.append((kind, found))
            return
        metadata = found["metadata"]
        known = self._known.get(metadata["uid"])
        if kind == "DELETED":
            if known is not None:
                self._clock.foreign()
        elif known is None or _newer(_version(found), known):
            self._clock.foreign()

    def _failed(self, error: ApiError) -> None:
        if error.code in (404, 409):  # somebody was faster: look again
            self._clock.again()
        elif error.code == 422:
            self._clock.never()  # the same content would be refused again
        else:
            self._clock.failed(error.retry_after)
        self._report(_explained(error))

    def _report(self, text: str | None) -> None:
        if text == self.last_error:
            return
        self.last_error = text
        if text is None:
            log.info("ResourceSlices are published, generation %d", self._generation)
            return
        log.warning("ResourceSlices are not published: %s", text)
        if self._on_error is not None:
            self._on_error(text)


def _explained(error: ApiError) -> str:
    if error.code == 403:
        return (
            f"{error}; RBAC or an admission policy refused: the service account needs get, list, "
            "watch, create, update and delete on resourceslices.resource.k8s.io, and a policy "
            "for ResourceSlices must name this account, its node and this driver"
        )
    if error.reason == "AlreadyExists":
        return f"{error}; a ResourceSlice of this name belongs to another node or driver"
    if error.code == 422:
        return f"{error}; not tried again until the driver changes its pool"
    return str(error)


def _version(found: Object) -> str:
    return str(found["metadata"]["resourceVersion"])


def _newer(version: str, known: str) -> bool:
    if version.isdecimal() and known.isdecimal():
        return int(version) > int(known)
    return version != known
