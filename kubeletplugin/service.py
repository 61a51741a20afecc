"""What NodePrepareResources and NodeUnprepareResources do, apart from their encoding."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from kubeletplugin.claims import PATIENCE_S, ClaimSource, ClaimsUnavailableError, check_claim
from kubeletplugin.contract import ClaimRef, ClaimRefusedError, Driver, PreparedDevice
from kubeletplugin.overdue import waiting_at, whereabouts
from kubeletplugin.work import ClaimWork

log = logging.getLogger(__name__)

Method: TypeAlias = Literal["prepare", "unprepare"]

_INTERNAL = "internal error in the driver; its log has the details for this claim's UID"
_GOES_ON = "goes on, and the next try gets what came of it"
_NOT_OPENED = (
    "the plugin's earlier instance has not given way yet; its log says what it still does"
)
_NO_CLAIM = f"the API server has not answered with the claim yet; reading it {_GOES_ON}"
_NOT_DONE = f"the driver is not done yet; its work {_GOES_ON}; its log says where it is"
_RECALL_AFTER_S = 2.0  # how long a known claim waits for an API server that is away
_MARGIN_S = 3.0  # before the caller's deadline: what it is told then says more than that it passed


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
        self._read: set[str] = set()  # UIDs of claims that the API server is being asked for
        self._observer = observer or NoObserver()
        self._expected: tuple[type[Exception], ...] = (
            ClaimRefusedError,
            ClaimsUnavailableError,
            *driver.expected_errors,
        )

    async def prepare(self, refs: Iterable[ClaimRef]) -> dict[str, Outcome]:
        return await self._each("prepare", refs)

    async def unprepare(self, refs: Iterable[ClaimRef]) -> dict[str, Outcome]:
        return await self._each("unprepare", refs)

    async def answer(
        self, method: Method, refs: Iterable[ClaimRef], left_s: float | None
    ) -> dict[str, Outcome]:
        """A call of the kubelet, with ``left_s`` seconds until it gives up (None: never).

        Shortly before, what is not done is answered with what it waits for. The work goes on, and
        a repeated call waits for that.
        """
        end = None
        if left_s is not None:
            margin_s = min(_MARGIN_S, left_s / 10)
            end = asyncio.get_running_loop().time() + left_s - margin_s
        if not self.opened.is_set():
            try:
                async with asyncio.timeout_at(end):
                    await self.opened.wait()
            except TimeoutError:
                return {ref.uid: Outcome(error=_NOT_OPENED) for ref in refs}
        return await self._each(method, refs, end)

    async def _prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        self._read.add(ref.uid)
        try:
            claim = await self._claims.get(ref, _RECALL_AFTER_S)
        except ClaimsUnavailableError as away:
            known = await self._driver.recall(ref)
            if known is not None:
                log.warning("claim %s answered from the records: %s", ref, away, extra=fields(ref))
                return tuple(known)
            claim = await self._claims.get(ref, PATIENCE_S - _RECALL_AFTER_S)
        finally:
            self._read.discard(ref.uid)
        return tuple(await self._driver.prepare(check_claim(claim, ref)))

    async def _unprepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        await self._driver.unprepare(ref)
        return ()

    async def _each(
        self, method: Method, refs: Iterable[ClaimRef], end: float | None = None
    ) -> dict[str, Outcome]:
        unique = tuple({ref.uid: ref for ref in refs}.values())
        answers = [self._until(end, method, ref) for ref in unique]
        outcomes: Sequence[Outcome] = (
            [await answers[0]] if len(answers) == 1 else await asyncio.gather(*answers)
        )
        return {ref.uid: outcome for ref, outcome in zip(unique, outcomes, strict=True)}

    async def _until(self, end: float | None, method: Method, ref: ClaimRef) -> Outcome:
        """``end`` in the event loop's time."""
        try:
            async with asyncio.timeout_at(end):
                return await self._work.run(ref.uid, method, lambda: self._one(method, ref))
        except TimeoutError:
            return self._overdue(method, ref)

    def _overdue(self, method: Method, ref: ClaimRef) -> Outcome:
        log.warning(
            "claim %s: %s takes too long; it is at %s; threads: %s",
            ref,
            method,
            waiting_at(self._work.coroutine(ref.uid)),
            whereabouts(),
            extra=fields(ref),
        )
        return Outcome(error=_NO_CLAIM if ref.uid in self._read else _NOT_DONE)

    async def _one(self, method: Method, ref: ClaimRef) -> Outcome:
        started = time.monotonic()
        call = self._prepare if method == "prepare" else self._unprepare
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
