"""What runs beside the work on claims because cards are shared."""

import logging
from dataclasses import dataclass

from driver.hw.card import Cards
from driver.lanes import Lanes
from driver.model.claims import Record
from driver.model.ids import GpuUuid
from driver.mps_watch import MpsWatch
from driver.node import NodeCards
from driver.plan.status import Troubles
from driver.plugin import GpuDriver
from driver.pods import ClaimPods
from driver.sharing import Seen
from driver.state.journal import Journal
from driver.status_writer import StatusWriter
from driver.telling import Telling
from driver.upkeep import Upkeep
from driver.watchdog import Voice, Watchdog
from driver.watching import CardWatch
from kubeletplugin.kube import KubeClient

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts of the node plugin that it works with."""

    hardware: Cards
    cards: NodeCards
    journal: Journal
    driver: GpuDriver
    lanes: Lanes
    watch: CardWatch


class ShareService:
    """Follows the MPS supervisor, looks at what claims use, removes what is left over."""

    def __init__(
        self, parts: Shared, client: KubeClient, telling: Telling, status: StatusWriter
    ) -> None:
        self._parts = parts
        self._telling = telling
        self._status = status
        self._told = ""
        self.pods = ClaimPods()
        self._supervisor = MpsWatch(parts.hardware.mps, self._take)
        self.watchdog = Watchdog(
            parts.journal, parts.cards, self.pods, Voice(telling, status.put, client)
        )
        self._upkeep = Upkeep(
            parts.hardware, parts.journal, parts.driver, parts.lanes, telling, self.pods
        )

    # What runs ---------------------------------------------------------------------------

    async def look(self) -> None:
        """Ask the supervisor once, before anything is published."""
        await self._supervisor.look()

    async def follow(self) -> None:
        """Follow the supervisor for ever."""
        await self._supervisor.listen()

    async def look_at_use(self) -> None:
        """One look of the watchdog."""
        await self.watchdog.round()

    async def keep_up(self) -> None:
        """Daemons and modes as the journal has them."""
        await self._upkeep.round(self._parts.cards.gpus.keys())

    # What is told ------------------------------------------------------------------------

    def troubles(self, record: Record) -> Troubles:
        """What the conditions of a claim have to say beside how it was prepared."""
        shares = self._parts.cards.shares
        down = {gpu: text for gpu in record.gpus if (text := shares.fault(gpu))}
        over = {each.gpu: each.text for each in self.watchdog.told(record.claim.uid)}
        return Troubles(daemons=down, over=over)

    def retell(self, gpu: GpuUuid) -> None:
        """Write the conditions of the claims that have shares of the card anew."""
        for record in self._parts.journal.records_on([gpu]):
            if any(held.share is not None for held in record.held):
                self._status.put(record)

    async def _take(self, seen: Seen) -> None:
        before = self._parts.cards.shares.facts.mps
        await self._parts.watch.take_sharing(seen)
        if seen.problem == self._told:
            return
        self._told = seen.problem
        if not seen.problem:
            self._telling.node_event("Normal", "SharesOffered", "the MPS supervisor answers")
        elif before is None:
            note = f"no shares by MPS are offered: {seen.problem}"
            self._telling.node_event("Normal", "SharesNotOffered", note)
        else:
            note = f"shares by MPS are tainted, those that are prepared go on: {seen.problem}"
            self._telling.node_event("Warning", "MPSSupervisorAway", note)
