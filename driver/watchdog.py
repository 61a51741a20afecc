"""Looks at what claims with shares really use, and says so where it is too much (design 9.4)."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from driver.errors import HardwareError
from driver.model.claims import ClaimState, Record
from driver.model.ids import ClaimUid, GpuUuid
from driver.model.usage import ProcessUse
from driver.plan.watchdog import (
    Excess,
    Watched,
    allowances,
    excesses,
    forget,
    judged,
    look,
)
from driver.pods import ClaimPods
from kubeletplugin.contract import ClaimRef
from kubeletplugin.kube import ApiError, KubeClient

log = logging.getLogger(__name__)

REASON_OVER, REASON_WITHIN = "ShareExceeded", "ShareRespected"


class Records(Protocol):
    def all(self) -> tuple[Record, ...]: ...


class Node(Protocol):
    """The part of ``driver.node.NodeCards`` that is used here; ``uses`` blocks."""

    def uses(self, gpu: GpuUuid) -> tuple[ProcessUse, ...]: ...
    def evicts(self, gpu: GpuUuid) -> bool: ...


class Events(Protocol):
    def claim_event(self, ref: ClaimRef, kind: str, reason: str, note: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Voice:
    """Where what was found goes."""

    events: Events
    status: Callable[[Record], object]  # the claim's conditions are written anew
    client: KubeClient  # evicts


class Watchdog:
    """``round`` is one look; it costs nothing while no card is shared."""

    def __init__(self, journal: Records, node: Node, pods: ClaimPods, voice: Voice) -> None:
        self._journal = journal
        self._node = node
        self._pods = pods
        self._voice = voice
        self._known = Watched()
        self._evicted: set[str] = set()  # UIDs of pods
        self._unreadable: set[GpuUuid] = set()

    @property
    def over_limit(self) -> int:
        """How many claims use too much, as far as it was told."""
        return len({uid for uid, _ in self._known.told})

    def told(self, uid: ClaimUid) -> tuple[Excess, ...]:
        """What was told of a claim and still holds."""
        return tuple(each for (claim, _), each in self._known.told.items() if claim == uid)

    async def round(self) -> None:
        records = {r.claim.uid: r for r in self._journal.all() if r.state is ClaimState.COMPLETED}
        self._pods.keep(records.keys())
        there = allowances(records.values())
        self._known = forget(self._known, {each.key for each in there})
        gpus = sorted({each.gpu for each in there})
        uses = await asyncio.to_thread(self._uses, gpus) if gpus else {}
        pods = self._pods.uids()
        found = excesses(there, uses, pods)
        self._known, fresh, over = look(self._known, found, judged(there, uses, pods))
        for each in fresh:
            self._tell(each, records, "Warning", REASON_OVER, each.text)
        for each in over:
            self._tell(each, records, "Normal", REASON_WITHIN, "uses no more than it has again")
        self._evicted &= {pod for each in pods.values() for pod in each}
        await self._evict(found)

    def _uses(self, gpus: Iterable[GpuUuid]) -> dict[GpuUuid, Sequence[ProcessUse]]:
        found: dict[GpuUuid, Sequence[ProcessUse]] = {}
        for gpu in gpus:
            try:
                found[gpu] = self._node.uses(gpu)
                self._unreadable.discard(gpu)
            except HardwareError as error:
                if gpu not in self._unreadable:  # it may last for days
                    log.warning("the use of card %s cannot be read: %s", gpu, error)
                self._unreadable.add(gpu)
        return found

    def _tell(
        self, excess: Excess, records: dict[ClaimUid, Record], kind: str, reason: str, text: str
    ) -> None:
        claim, note = excess.claim, f"card {excess.gpu}: {text}"
        level = logging.WARNING if kind == "Warning" else logging.INFO
        log.log(level, "claim %s: %s", claim, note, extra={"claimUID": claim.uid})
        ref = ClaimRef(claim.namespace, claim.name, claim.uid)
        self._voice.events.claim_event(ref, kind, reason, note)
        self._voice.status(records[claim.uid])

    # Eviction ----------------------------------------------------------------------------

    async def _evict(self, found: Iterable[Excess]) -> None:
        """Pods whose claims were told of too much memory, and still have it; where the policy of
        the card says so. Each round tries again what a PodDisruptionBudget refused."""
        for excess in found:
            if not (excess.memory and excess.key in self._known.told):
                continue
            if not self._node.evicts(excess.gpu):
                continue
            names = self._pods.of(excess.claim.uid)
            for uid in excess.pods:
                if uid in names and uid not in self._evicted:
                    await self._evict_pod(excess, names[uid], uid)

    async def _evict_pod(self, excess: Excess, name: str, uid: str) -> None:
        namespace = excess.claim.namespace
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            await self._voice.client.create(
                f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body
            )
        except ApiError as error:
            if error.code not in (404, 409):  # gone, or another pod of that name
                log.warning("pod %s/%s is not evicted: %s", namespace, name, error)
                return
        self._evicted.add(uid)
        ref = ClaimRef(namespace, excess.claim.name, excess.claim.uid)
        self._voice.events.claim_event(
            ref, "Warning", "PodEvicted", f"pod {name} is evicted (eviction): {excess.text}"
        )
