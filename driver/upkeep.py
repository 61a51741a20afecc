"""Keeps daemons, modes and limits of shared cards in step with the journal (``plan.upkeep``)."""

import asyncio
import logging
from collections.abc import Set
from functools import partial
from typing import Protocol

from driver.errors import DriverError, HardwareError
from driver.hw.mps import MpsCards
from driver.lanes import Lanes
from driver.model.claims import Record
from driver.model.gpu import ComputeMode
from driver.model.ids import ClaimUid, GpuUuid
from driver.model.steps import ServeMps, SetComputeMode, Step
from driver.plan.upkeep import limiting, settings, unneeded, unserved
from driver.plugin import GpuDriver
from driver.pods import ClaimPods
from driver.state.journal import Journal
from kubeletplugin.contract import ClaimRef

log = logging.getLogger(__name__)

NOT_LIMITED = "PodNotLimited"  # Event


class Hardware(Protocol):
    """The part of ``driver.hw.card.Cards`` that is used here. Methods block."""

    mps: MpsCards

    def undo(self, step: Step) -> None: ...
    def present(self, step: Step) -> bool: ...


class Events(Protocol):
    def node_event(self, kind: str, reason: str, note: str) -> None: ...
    def claim_event(self, ref: ClaimRef, kind: str, reason: str, note: str) -> None: ...


class Upkeep:
    """``round`` is one pass. Nothing is done about a card whose claims want it so."""

    def __init__(
        self,
        hardware: Hardware,
        journal: Journal,
        driver: GpuDriver,
        lanes: Lanes,
        events: Events,
        pods: ClaimPods,
    ) -> None:
        self._pods = pods
        self._hardware = hardware
        self._journal = journal
        self._driver = driver
        self._lanes = lanes
        self._events = events
        self._exclusive: frozenset[GpuUuid] = frozenset()  # without a claim, in the last round
        self._unlimited: set[ClaimUid] = set()  # told of

    async def round(self, gpus: Set[GpuUuid]) -> None:
        """Look at the node's cards. One that does not answer never stops the others."""
        served = await asyncio.to_thread(self._served)
        if served is not None:
            for record in unserved(self._journal.all(), served):
                await self._mend(record)
        for record in await asyncio.to_thread(self._unset):
            await self._mend(record)
        suspects = await asyncio.to_thread(self._left, gpus)
        for gpu in sorted((served or frozenset()) | (suspects & self._exclusive)):
            await self._in_lane(gpu, served or frozenset())
        self._exclusive = suspects
        for record in limiting(self._journal.all()):
            await self._limit(record)

    def _served(self) -> frozenset[GpuUuid] | None:
        """Cards with a control daemon; None where nobody can tell (said by who follows it)."""
        if not self._hardware.mps.configured:
            return None
        try:
            return frozenset(self._hardware.mps.cards())
        except HardwareError:
            return None

    def _unset(self) -> tuple[Record, ...]:
        """Claims whose cards are no longer set as they need it; one for each setting."""
        found = settings(self._journal.all())
        lost = (record for step, record in found.items() if self._has(step) is False)
        return tuple({record.claim.uid: record for record in lost}.values())

    def _left(self, gpus: Set[GpuUuid]) -> frozenset[GpuUuid]:
        """Cards that are for one process only, and that no claim holds."""
        return frozenset(
            gpu
            for gpu in gpus
            if not self._journal.records_on([gpu])
            and self._has(SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS))
        )

    def _has(self, step: Step) -> bool | None:
        """Whether the card is as after ``step``; None where it does not tell: its health does."""
        try:
            return self._hardware.present(step)
        except HardwareError:
            return None

    async def _mend(self, record: Record) -> None:
        extra = {"claimUID": record.claim.uid}
        try:
            done = await self._lanes.run(record.gpus, partial(self._driver.mend, record))
        except DriverError as error:
            log.warning("claim %s lacks what it needs: %s", record.claim, error, extra=extra)
            return
        if done:
            what = "MPS daemon, compute mode or time slice"
            log.warning("claim %s: its %s was gone, made again", record.claim, what, extra=extra)

    async def _limit(self, record: Record) -> None:
        """Pods that joined the claim since it was prepared, and limits that are gone."""
        claim, extra = record.claim, {"claimUID": record.claim.uid}
        limit = partial(self._driver.limit, record, self._pods.of(claim.uid).keys())
        try:
            done = await self._lanes.run(record.gpus, limit)
        except DriverError as error:
            log.warning("a pod of claim %s has no memory limit: %s", claim, error, extra=extra)
            if claim.uid not in self._unlimited:
                ref = ClaimRef(claim.namespace, claim.name, claim.uid)
                self._events.claim_event(ref, "Warning", NOT_LIMITED, f"{error}; tried again")
            self._unlimited.add(claim.uid)
            return
        self._unlimited.discard(claim.uid)
        if done:
            log.info("claim %s: its pods are limited as they are now", claim, extra=extra)

    async def _in_lane(self, gpu: GpuUuid, served: Set[GpuUuid]) -> None:
        try:
            done = await self._lanes.run([gpu], lambda: self._clear(gpu, gpu in served))
        except DriverError as error:
            log.warning("card %s is not as it was before its last claim: %s", gpu, error)
            return
        for what in done:
            log.warning("card %s: %s", gpu, what, extra={"gpu": gpu})
            self._events.node_event("Warning", "LeftoverRemoved", f"card {gpu}: {what}")

    def _clear(self, gpu: GpuUuid, served: bool) -> list[str]:
        """In the card's lane: no claim is being prepared on it meanwhile."""
        done = []
        for step in unneeded(gpu, self._journal.records_on([gpu]), served=served):
            if not isinstance(step, ServeMps) and not self._hardware.present(step):
                continue
            self._hardware.undo(step)
            done.append(_WORDS[type(step)])
        return done


_WORDS = {
    ServeMps: "its MPS control daemon was stopped: no claim has a share of the card",
    SetComputeMode: "its compute mode was EXCLUSIVE_PROCESS and is DEFAULT again: no claim asked "
    "for it",
}
