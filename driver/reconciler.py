"""Compares journal, CDI folder and API, and mends what no call of the kubelet ever will."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from driver.errors import DriverError, HardwareError, StateError
from driver.lanes import Lanes
from driver.metrics import Metrics
from driver.model.claims import ClaimState, Record
from driver.model.gpu import GpuProcess
from driver.model.ids import ClaimUid
from driver.model.mig import Place
from driver.node import NodeCards
from driver.plan.reconcile import ClaimView, Clock, Decision, Release, Wait, decide, orphans
from driver.plugin import GpuDriver, Identity, facts
from driver.state.journal import Journal
from driver.status_writer import StatusWriter
from kubeletplugin.claims import claim_path
from kubeletplugin.contract import ClaimRef, Object
from kubeletplugin.kube import ApiError, KubeClient

log = logging.getLogger(__name__)

CLAIMS_PATH = "/apis/resource.k8s.io/v1/resourceclaims"


class Serving(Protocol):
    """Prepare and unprepare in line with the kubelet's own calls; the error text or ""."""

    async def prepare_one(self, ref: ClaimRef) -> str: ...
    async def unprepare_one(self, ref: ClaimRef) -> str: ...


class Telling(Protocol):
    """Events: on a claim, or on the node where there is none."""

    def claim_event(self, ref: ClaimRef, kind: str, reason: str, note: str) -> None: ...
    def node_event(self, kind: str, reason: str, note: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Local:
    """This side of the comparison."""

    identity: Identity
    journal: Journal
    cards: NodeCards
    driver: GpuDriver
    lanes: Lanes


@dataclass(frozen=True, slots=True)
class Remote:
    """The other side, and who is told."""

    client: KubeClient
    serving: Serving
    status: StatusWriter
    events: Telling


class Reconciler:
    """``round`` is one pass; it raises nothing that concerns a single claim."""

    def __init__(
        self,
        local: Local,
        remote: Remote,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = local.identity
        self._journal = local.journal
        self._cards = local.cards
        self._driver = local.driver
        self._lanes = local.lanes
        self._client = remote.client
        self._serving = remote.serving
        self._status = remote.status
        self._events = remote.events
        self._metrics = metrics
        self._clock = clock
        self._first_seen: dict[ClaimUid, float] = {}
        self._warned: set[ClaimUid] = set()
        self.pods: Callable[[], Mapping[ClaimUid, Set[str]]] = dict  # of each claim, by UID
        self.on_claim: Callable[[Object], None] = lambda _: None

    async def round(self) -> None:
        await self.rebuild()
        await self._restore_files()
        records = self._journal.all()
        claims = {record.claim.uid: await self._read(record) for record in records}
        views = {uid: view for uid, (view, _) in claims.items() if view is not None}
        for record in records:
            view, claim = claims[record.claim.uid]
            if view is ClaimView.FINE and claim is not None:
                self._tell_status(record, claim)
        await self._release(records, views)

    # Damaged records ---------------------------------------------------------------------

    async def rebuild(self) -> bool:
        """Make good for records that could not be trusted, from the API. True: none is left.

        The claim is found by the UID in the file's name: its allocation says what was prepared.
        Until then cards that no other record names are tainted (``NodeCards.blocked``).
        """
        waiting = {item.uid: item for item in self._journal.damaged if item.uid is not None}
        if waiting:
            try:
                found = await self._find(waiting.keys())
            except ApiError as error:
                log.warning("damaged records are not rebuilt yet: %s", error)
                self._cards.blocked = True
                return False
            for uid, item in waiting.items():
                await self._rebuild(uid, found.get(uid), item.problem)
        self._cards.blocked = any(item.uid is not None for item in self._journal.damaged)
        return not self._cards.blocked

    async def _find(self, uids: Set[ClaimUid]) -> dict[ClaimUid, ClaimRef]:
        found = {}
        for claim in (await self._client.list_pages(CLAIMS_PATH))[0]:
            meta = claim["metadata"]
            if meta["uid"] in uids:
                found[ClaimUid(meta["uid"])] = ClaimRef(
                    meta["namespace"], meta["name"], meta["uid"]
                )
        return found

    async def _rebuild(self, uid: ClaimUid, ref: ClaimRef | None, problem: str) -> None:
        if ref is None:
            ref = ClaimRef("", "", uid)
            error, what = await self._serving.unprepare_one(ref), "its claim no longer exists"
        else:
            error, what = await self._serving.prepare_one(ref), "rebuilt from its claim"
        error = error or await asyncio.to_thread(self._settle, uid)
        extra = {"claimUID": uid}
        if error:
            log.warning(
                "record of claim %s was damaged and is not rebuilt: %s", ref, error, extra=extra
            )
            if uid not in self._warned:
                self._warned.add(uid)
                self._tell(
                    ref, "Warning", "ClaimRecordDamaged", f"{problem}; not rebuilt: {error}"
                )
            return
        log.warning("record of claim %s was damaged (%s): %s", ref, problem, what, extra=extra)
        self._metrics.recovered.labels("rebuilt").inc()
        self._tell(ref, "Warning", "ClaimRecordRebuilt", f"{problem}: {what}")

    def _settle(self, uid: ClaimUid) -> str:
        """Why the damage cannot be marked as dealt with; empty when it is."""
        try:
            self._journal.settle(uid)
        except StateError as error:
            return str(error)
        return ""

    # CDI files ---------------------------------------------------------------------------

    async def _restore_files(self) -> None:
        for record in self._journal.all():
            if record.state is not ClaimState.COMPLETED:
                continue
            try:
                written = await self._lanes.run(record.gpus, partial(self._project, record))
            except DriverError as error:
                log.warning("CDI file of claim %s: %s", record.claim, error, extra=facts(record))
                continue
            if written:
                note = "its CDI file was missing, or not what it should be: written again"
                log.warning("claim %s: %s", record.claim, note, extra=facts(record))
                self._metrics.recovered.labels("cdiRestored").inc()
                self._tell(_ref(record), "Warning", "CDIFileRestored", note)

    def _project(self, record: Record) -> bool:
        """In the card's lane; a claim that was released meanwhile gets no file."""
        if self._journal.get(record.claim.uid) != record:
            return False
        return self._driver.project(record)

    # Orphans -----------------------------------------------------------------------------

    async def _read(self, record: Record) -> tuple[ClaimView | None, Object | None]:
        """What the API server says of a claim; None when it does not say."""
        try:
            claim = await self._client.get(claim_path(record.claim.namespace, record.claim.name))
        except ApiError as error:
            return (ClaimView.GONE if error.code == 404 else None), None
        if claim["metadata"]["uid"] != record.claim.uid:
            return ClaimView.OTHER_UID, claim
        self.on_claim(claim)
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        ours = any(
            result.get("driver") == self._identity.driver
            and result.get("pool") == self._identity.pool
            for result in results
        )
        return (ClaimView.FINE if ours else ClaimView.NOT_ALLOCATED), claim

    async def _release(self, records: Sequence[Record], views: dict[ClaimUid, ClaimView]) -> None:
        suspects = [r for r in records if views.get(r.claim.uid) not in (None, ClaimView.FINE)]
        places = {place for record in suspects for place in record.places}
        processes = await asyncio.to_thread(self._processes, places) if places else {}
        clock = Clock(self._clock(), float(self._cards.policy.orphan_grace_seconds))
        decisions = decide(records, views, processes, self._first_seen, clock)
        self._first_seen = orphans(decisions)
        for record, decision in zip(records, decisions, strict=True):
            await self._carry_out(record, decision)

    async def _carry_out(self, record: Record, decision: Decision) -> None:
        match decision:
            case Wait():
                log.info("%s", decision.reason, extra=facts(record))
            case Release():
                error = await self._serving.unprepare_one(_ref(record))
                if error:
                    log.warning("%s, but: %s", decision.reason, error, extra=facts(record))
                    return
                log.warning("%s: released", decision.reason, extra=facts(record))
                self._metrics.recovered.labels("orphanReleased").inc()
                self._events.node_event(
                    "Warning", "OrphanedClaimReleased", f"{decision.reason}: its cards are free"
                )

    def _processes(self, places: set[Place]) -> dict[Place, tuple[GpuProcess, ...]]:
        found = {}
        pods = self.pods()
        for place in places:
            gpu, placement = place
            try:
                if placement is None:
                    found[place] = self._cards.users(gpu, pods)
                else:
                    found[place] = self._cards.processes(gpu, placement)
            except HardwareError as error:
                log.warning("processes of card %s cannot be read: %s", place[0], error)
        return found

    # -------------------------------------------------------------------------------------

    def _tell_status(self, record: Record, claim: Object) -> None:
        if record.state is ClaimState.COMPLETED and self._status.missing(claim, record):
            self._status.put(record)

    def _tell(self, ref: ClaimRef, kind: str, reason: str, note: str) -> None:
        if ref.name:
            self._events.claim_event(ref, kind, reason, note)
        else:
            self._events.node_event(kind, reason, f"claim UID {ref.uid}: {note}")


def _ref(record: Record) -> ClaimRef:
    return ClaimRef(record.claim.namespace, record.claim.name, record.claim.uid)
