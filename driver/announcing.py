"""What is said, and where: log, Events, counters."""

import logging
from collections.abc import Set

from driver.apply.executor import Outcome, Recovery
from driver.metrics import Metrics
from driver.node import Change
from driver.telling import Telling
from kubeletplugin.contract import ClaimRef
from kubeletplugin.probe import COUNTERS, GATES, SHARING, TAINTS

log = logging.getLogger(__name__)

_WITHOUT = {
    TAINTS: "faulty cards that are not allocated are withdrawn instead of tainted",
    COUNTERS: "partitions are not made on demand, only existing ones are offered",
    SHARING: "no shares are offered",
}


class Announcer:
    """Never raises, never waits."""

    def __init__(self, telling: Telling, metrics: Metrics) -> None:
        self._telling = telling
        self._metrics = metrics

    def missing(self, features: Set[str]) -> None:
        """The API server drops these fields of ResourceSlices."""
        gates = ", ".join(sorted(GATES[feature] for feature in features))
        note = f"the API server drops fields of ResourceSlices: feature gate {gates} is off"
        note = "; ".join([note, *(_WITHOUT[each] for each in _WITHOUT if each in features)])
        log.warning("%s", note)
        self._telling.node_event("Warning", "FeatureGateMissing", note)

    def change(self, change: Change) -> None:
        """A card got worse or better."""
        if change.text:
            self._telling.node_event("Warning", change.reason, f"card {change.gpu}: {change.text}")
        else:
            self._telling.node_event("Normal", change.mended, f"card {change.gpu} {change.again}")

    def recovery(self, recovery: Recovery) -> None:
        """What was done about a claim at the start; nothing is said where nothing was."""
        if recovery.outcome is Outcome.INTACT:
            return
        claim = recovery.claim
        log.warning("%s", recovery, extra={"claimUID": claim.uid})
        self._metrics.recovered.labels(recovery.outcome.value).inc()
        self._telling.claim_event(
            ClaimRef(claim.namespace, claim.name, claim.uid),
            "Warning",
            "ClaimRecovered" if recovery.error is None else "ClaimNotRecovered",
            f"after a restart of the driver or the node: {recovery.outcome.value}"
            + (f": {recovery.error}" if recovery.error else ""),
        )
