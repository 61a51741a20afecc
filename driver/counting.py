"""Gauges that are read when they are scraped."""

from collections.abc import Callable
from functools import partial

from driver.metrics import Metrics
from driver.model.claims import Record
from driver.node import NodeCards
from driver.share_service import ShareService
from driver.state.journal import Journal


class Counts:
    """``journal`` and ``shares`` give None until the instance lock is held."""

    def __init__(
        self,
        cards: NodeCards,
        journal: Callable[[], Journal | None],
        shares: Callable[[], ShareService | None],
    ) -> None:
        self._cards = cards
        self._journal = journal
        self._shares = shares

    def show(self, metrics: Metrics) -> None:
        watch, supervisor = metrics.watch, self._cards.shares
        watch("aliquot_prepared_claims", "Claims in the journal", lambda: len(self._records()))
        watch("aliquot_damaged_records", "Unsettled records", self._damaged)
        watch("aliquot_claims_over_limit", "Claims that use more than they have", self._over)
        for type_ in ("mps", "timeslice"):
            text = f"Prepared shares of cards, of type {type_}"
            watch(f"aliquot_{type_}_shares", text, partial(self._held, type_))
        for state, wanted in (("healthy", True), ("unhealthy", False)):
            metrics.cards.labels(state).set_function(partial(self._cards_that_are, wanted))
        for state, running in (("running", True), ("down", False)):
            metrics.daemons.labels(state).set_function(partial(supervisor.daemons, running))
        watch("aliquot_mps_supervisor_up", "1 while the MPS supervisor answers", supervisor.up)

    def _records(self) -> tuple[Record, ...]:
        journal = self._journal()
        return journal.all() if journal else ()

    def _damaged(self) -> float:
        journal = self._journal()
        return len(journal.damaged) if journal else 0

    def _over(self) -> float:
        shares = self._shares()
        return shares.watchdog.over_limit if shares else 0

    def _held(self, type_: str) -> float:
        held = (each for record in self._records() for each in record.held)
        return sum(each.share is not None and each.type == type_ for each in held)

    def _cards_that_are(self, healthy: bool) -> float:
        return sum(health.healthy is healthy for health in self._cards.health.values())
