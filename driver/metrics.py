"""What the plugin counts. Prometheus' client is loaded with the first series that is needed.

That is after the first ResourceSlice, which its 0.1 s of imports would delay.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from kubeletplugin.contract import ClaimRef

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge

    from driver.series import Series


class Metrics:
    """Also the ``Observer`` of the kubelet plugin."""

    @cached_property  # locks: the HTTP endpoint's thread may come at the same time
    def _series(self) -> "Series":
        from driver.series import Series  # noqa: PLC0415  (see above)

        return Series()

    @property
    def registry(self) -> "CollectorRegistry":
        return self._series.registry

    @property
    def cards(self) -> "Gauge":
        return self._series.cards

    @property
    def daemons(self) -> "Gauge":
        return self._series.daemons

    @property
    def recovered(self) -> "Counter":
        return self._series.recovered

    def claim_done(self, method: str, claim: ClaimRef, seconds: float, error: str) -> None:
        """Count one finished piece of work."""
        self._series.claim_done(method, claim, seconds, error)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is scraped."""
        self._series.watch(name, text, read)

    def render(self) -> bytes:
        """The exposition format."""
        return self._series.render()
