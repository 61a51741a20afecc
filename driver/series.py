"""The series in Prometheus' terms; all exist from the start, at zero."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kubeletplugin.contract import ClaimRef

METHODS = ("prepare", "unprepare")
RECOVERIES = ("redone", "rolledBack", "unrepaired", "rebuilt", "cdiRestored", "orphanReleased")
# Seconds: a prepare costs milliseconds, a MIG or MPS one seconds; the kubelet's deadline is 45 s.
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 45)


class Series:
    """Made by ``Metrics`` when they are first needed."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "aliquot_claim_operation_seconds",
            "Time spent on one claim, from the kubelet's call to its answer",
            ["method"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._errors = Counter(
            "aliquot_claim_errors",
            "Claims that were answered with an error",
            ["method"],
            registry=self.registry,
        )
        self.cards = Gauge(
            "aliquot_gpus",
            "Cards of the node by state",
            ["state"],
            registry=self.registry,
        )
        self.daemons = Gauge(
            "aliquot_mps_daemons",
            "MPS control daemons of the node by state",
            ["state"],
            registry=self.registry,
        )
        self.recovered = Counter(
            "aliquot_recovered_claims",
            "Claims repaired at start or by the reconciler, by what was done",
            ["outcome"],
            registry=self.registry,
        )
        for method in METHODS:
            self._seconds.labels(method)
            self._errors.labels(method)
        for outcome in RECOVERIES:
            self.recovered.labels(outcome)

    def claim_done(self, method: str, claim: ClaimRef, seconds: float, error: str) -> None:
        """Count one finished piece of work."""
        del claim  # a label per claim would never end
        self._seconds.labels(method).observe(seconds)
        if error:
            self._errors.labels(method).inc()

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is scraped."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
