"""Writes ``status.devices`` of prepared claims: after the answer to the kubelet, never before."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from driver.model.claims import Record
from driver.model.gpu import Gpu
from driver.model.ids import ClaimUid, GpuUuid
from driver.plan.status import NO_TROUBLES, Troubles, already_says, status_patch
from kubeletplugin.claims import claim_path
from kubeletplugin.contract import Object
from kubeletplugin.kube import ApiError, KubeClient, Unreachable

log = logging.getLogger(__name__)

_BACKOFF_S = (0.5, 2.0, 10.0, 30.0)
_REFUSED_FOR_S = 3600.0  # a right may be granted meanwhile; sooner would be a write each round
_AFTER_S = 0.005  # the answer to the kubelet goes out first, on the same event loop
# A hundred claims at once are answered first: each write costs the API server what a GET costs.
_YIELD_S = 2.0  # the longest that one write waits for claims


async def _at_once(_: float) -> bool:
    """Nobody else is there."""
    return True


class StatusWriter:
    """One write at a time; the latest record of a claim wins, a released one is dropped."""

    def __init__(
        self, client: KubeClient, driver: str, gpus: Callable[[], Mapping[GpuUuid, Gpu]]
    ) -> None:
        self.troubles: Callable[[Record], Troubles] = lambda _: NO_TROUBLES
        self.idle: Callable[[float], Awaitable[bool]] = _at_once
        self._client = client
        self._driver = driver
        self._gpus = gpus
        self._waiting: dict[ClaimUid, Record] = {}
        self._refused: dict[ClaimUid, tuple[Record, float]] = {}  # with the time, monotonic
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, record: Record) -> None:
        self._waiting[record.claim.uid] = record
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_AFTER_S, self._due)

    def _due(self) -> None:
        self._timer = None
        self._wake.set()

    def drop(self, record: Record) -> None:
        self._waiting.pop(record.claim.uid, None)
        self._refused.pop(record.claim.uid, None)

    def missing(self, claim: Object, record: Record) -> bool:
        """Whether the claim does not say yet what it should, and it is worth a try."""
        refused, at = self._refused.get(record.claim.uid, (None, 0.0))
        if refused == record and time.monotonic() < at + _REFUSED_FOR_S:
            return False
        return not already_says(claim, self._patch(record))

    async def run(self) -> None:
        """Write what is put, for ever; tries again while the API server is away."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            patient = True
            while self._waiting:
                if patient:  # a claim that hangs makes the first write late, not each
                    patient = await self.idle(_YIELD_S)
                    if not self._waiting:
                        break  # released meanwhile
                uid, record = next(iter(self._waiting.items()))
                if await self._write(record):
                    failures = 0
                    if self._waiting.get(uid) is record:
                        del self._waiting[uid]
                else:
                    self._to_the_end(uid)
                    await asyncio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
                    failures += 1

    def _to_the_end(self, uid: ClaimUid) -> None:
        """One claim that is refused again and again does not keep the others waiting for ever."""
        record = self._waiting.pop(uid, None)
        if record is not None:
            self._waiting[uid] = record

    async def _write(self, record: Record) -> bool:
        """Whether it is settled: written, or refused for good."""
        claim, extra = record.claim, {"claimUID": record.claim.uid}
        path = claim_path(claim.namespace, claim.name) + "/status"
        try:
            await self._client.apply(
                path, self._patch(record), field_manager=self._driver, force=True
            )
        except ApiError as error:
            if isinstance(error, Unreachable) or error.code == 429 or error.code >= 500:
                log.info("status of claim %s not written yet: %s", claim, error, extra=extra)
                return False
            if error.code not in (404, 409):  # gone, or made anew: nothing to say any more
                self._refused[claim.uid] = (record, time.monotonic())
                advice = _advice(error)
                log.warning(
                    "status of claim %s not written: %s; %s", claim, error, advice, extra=extra
                )
        return True

    def _patch(self, record: Record) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return status_patch(
            record, self._gpus(), driver=self._driver, now=now, troubles=self.troubles(record)
        )


def _advice(error: ApiError) -> str:
    """Since Kubernetes 1.36 a writer of ``status.devices`` must leave ``status.allocation`` as it
    is, byte by byte, and a patch writes the opaque parameters in it anew (seen on 1.37.2)."""
    if error.code == 422 and "status.allocation: Forbidden" in error.message:
        return (
            "the opaque parameters of the claim or its class are not JSON in its shortest form "
            "with sorted keys, as kubectl writes them; write them so, the devices work either way"
        )
    return (
        "the ClusterRole needs patch on resourceclaims/status and associated-node:patch on "
        "resourceclaims/driver"
    )
