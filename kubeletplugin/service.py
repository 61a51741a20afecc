"""What NodePrepareResources and NodeUnprepareResources do, apart from their encoding."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kubeletplugin.claims import PATIENCE_S, ClaimSource, ClaimsUnavailableError, check_claim
from kubeletplugin.contract import ClaimRef, ClaimRefusedError, Driver, PreparedDevice
from kubeletplugin.work import ClaimWork

log = logging.getLogger(__name__)

T = TypeVar("T")

_INTERNAL = "internal error in the driver; its log has the details for this claim's UID"
_RECALL_AFTER_S = 2.0  # how long a known claim waits for an API server that is away


def fields(ref: ClaimRef) -> dict[str, str]:
    """What a log line about a claim carries, for formatters that show extra fields."""
    return {"claim": f"{ref.namespace}/{ref.name}", "claimUID": ref.uid}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer for one claim: devices, or why there are none."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class Observer(Protocol):
    """Told of every finished piece of work, also when no caller is left."""

    def claim_done(self, method: str, claim: ClaimRef, seconds: float, error: str) -> None: ...


class NoObserver:
    def claim_done(self, method: str, claim: ClaimRef, seconds: float, error: str) -> None:
        """Nobody wants to know."""


class DraService:
    """One answer for each claim, whatever happens to the others or to the caller."""

    def __init__(
        self,
        driver: Driver,
        claims: ClaimSource,
        work: "ClaimWork[Outcome]",
        observer: Observer | None = None,
    ) -> None:
        self._driver = driver
        self._claims = claims
        self._work = work
        self.opened = asyncio.Event()  # until then the kubelet's calls wait
        self._observer = observer or NoObserver()
        self._expected: tuple[type[Exception], ...] = (
            ClaimRefusedError,
            ClaimsUnavailableError,
            *driver.expected_errors,
        )

    async def prepare(self, refs: Iterable[ClaimRef]) -> dict[str, Outcome]:
        return await self._each("prepare", refs, self._prepare)

    async def unprepare(self, refs: Iterable[ClaimRef]) -> dict[str, Outcome]:
        return await self._each("unprepare", refs, self._unprepare)

    async def _prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        try:
            claim = await self._claims.get(ref, _RECALL_AFTER_S)
        except ClaimsUnavailableError as away:
            known = await self._driver.recall(ref)
            if known is not None:
                log.warning("claim %s answered from the records: %s", ref, away, extra=fields(ref))
                return tuple(known)
            claim = await self._claims.get(ref, PATIENCE_S - _RECALL_AFTER_S)
        return tuple(await self._driver.prepare(check_claim(claim, ref)))

    async def _unprepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        await self._driver.unprepare(ref)
        return ()

    async def _each(
        self,
        method: str,
        refs: Iterable[ClaimRef],
        call: Callable[[ClaimRef], Awaitable[tuple[PreparedDevice, ...]]],
    ) -> dict[str, Outcome]:
        unique = tuple({ref.uid: ref for ref in refs}.values())
        jobs = [
            self._work.run(ref.uid, method, lambda ref=ref: self._one(method, ref, call))  # type: ignore[misc]
            for ref in unique
        ]
        outcomes: Sequence[Outcome] = (
            [await jobs[0]] if len(jobs) == 1 else await asyncio.gather(*jobs)
        )
        return {ref.uid: outcome for ref, outcome in zip(unique, outcomes, strict=True)}

    async def _one(
        self,
        method: str,
        ref: ClaimRef,
        call: Callable[[ClaimRef], Awaitable[tuple[PreparedDevice, ...]]],
    ) -> Outcome:
        started = time.monotonic()
        try:
            outcome = Outcome(await call(ref))
        except self._expected as error:
            outcome = Outcome(error=str(error) or type(error).__name__)
            log.warning("claim %s: %s refused: %s", ref, method, outcome.error, extra=fields(ref))
        except Exception:
            outcome = Outcome(error=_INTERNAL)
            log.exception("claim %s: %s hit a bug", ref, method, extra=fields(ref))
        self._observer.claim_done(method, ref, time.monotonic() - started, outcome.error)
        return outcome
