"""Which records have outlived their claims.

The kubelet unprepares what it knows of. A claim that vanished while the plugin was down, or a
kubelet that lost its checkpoint, leaves a record that nobody will ever ask to undo.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from driver.model.claims import Record
from driver.model.gpu import GpuProcess
from driver.model.ids import ClaimUid, GpuUuid
from driver.model.mig import Place


class ClaimView(Enum):
    """What the API server says of a recorded claim."""

    FINE = "is allocated to this node"
    GONE = "no longer exists"
    OTHER_UID = "was deleted, and another claim has its name"
    NOT_ALLOCATED = "is no longer allocated to a device of this node"


@dataclass(frozen=True, slots=True)
class Release:
    """Undo the record as unprepare would."""

    uid: ClaimUid
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The claim is orphaned, and it is too early or not safe to release it."""

    uid: ClaimUid
    since: float  # when it was first seen orphaned
    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """The claim is in use, or the API server did not say."""

    uid: ClaimUid


Decision: TypeAlias = Release | Wait | Keep
_Processes: TypeAlias = Mapping[Place, tuple[GpuProcess, ...]]


@dataclass(frozen=True, slots=True)
class Clock:
    """``now`` in seconds on a clock that does not go back, and how long an orphan waits."""

    now: float
    grace: float


def decide(
    records: Iterable[Record],
    views: Mapping[ClaimUid, ClaimView],
    processes: _Processes,
    first_seen: Mapping[ClaimUid, float],
    clock: Clock,
) -> tuple[Decision, ...]:
    """One decision a record, in their order.

    A record is released when its claim was seen orphaned at least twice, the first time at least
    ``clock.grace`` ago, and no process runs on a card or partition that it holds. Cards that it
    has only admin access to may be anybody's and do not count. On a card that others have shares
    of too, only processes count that are known to be of this claim. ``views`` lacks a claim that
    the API server could not be asked about, ``processes`` a place that could not be read: neither
    releases anything. ``first_seen`` is ``orphans`` of the last round.
    """
    known = tuple(records)
    sharers = Counter(gpu for record in known for gpu in _shared_cards(record))
    mine = ((record, _of(record, sharers, processes)) for record in known)
    return tuple(_decide(record, views, found, first_seen, clock) for record, found in mine)


def orphans(decisions: Iterable[Decision]) -> dict[ClaimUid, float]:
    """When each waiting claim was first seen orphaned, for the next round."""
    return {each.uid: each.since for each in decisions if isinstance(each, Wait)}


def _decide(
    record: Record,
    views: Mapping[ClaimUid, ClaimView],
    processes: _Processes,
    first_seen: Mapping[ClaimUid, float],
    clock: Clock,
) -> Decision:
    uid = record.claim.uid
    view = views.get(uid, ClaimView.FINE)
    if view is ClaimView.FINE:
        return Keep(uid)
    what = f"claim {record.claim} {view.value}"
    since = first_seen.get(uid)
    if since is None or since > clock.now:
        return Wait(uid, clock.now, f"{what}; looked at again before it is released")
    if clock.now - since < clock.grace:
        left = clock.grace - (clock.now - since)
        return Wait(uid, since, f"{what}; it is released in {left:.0f} s (orphanGraceSeconds)")
    in_use = _in_use(record, processes)
    return Wait(uid, since, f"{what}, but {in_use}") if in_use else Release(uid, what)


def _shared_cards(record: Record) -> set[GpuUuid]:
    return {held.gpu for held in record.held if held.share is not None}


def _of(record: Record, sharers: Mapping[GpuUuid, int], processes: _Processes) -> _Processes:
    """``processes`` without those of others on cards that are shared with others."""
    together = {gpu for gpu in _shared_cards(record) if sharers[gpu] > 1}
    if not together:
        return processes
    return {
        (gpu, place): tuple(p for p in found if p.claim == record.claim.uid)
        if gpu in together
        else found
        for (gpu, place), found in processes.items()
    }


def _in_use(record: Record, processes: _Processes) -> str:
    """Why its cards cannot be given away yet; empty when they can."""
    for place in dict.fromkeys(record.places):
        gpu, placement = place
        where = f"card {gpu}" + (f", {placement}" if placement else "")
        running = processes.get(place)
        if running is None:
            return f"the processes on {where} cannot be read"
        if running:
            pids = ", ".join(str(process.pid) for process in running)
            return f"processes still run on {where}: {pids}"
    return ""
