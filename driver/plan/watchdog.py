"""Who uses more of a card than its claim gives (design 9.4).

What MPS enforces holds for each process, and a claim may have many of them. This looks at what
all processes of a claim use together.

A process is known by its pod alone: nothing else of it is out of its tenant's reach. So two
claims of one pod cannot be told apart, and a claim may be used by several pods. Claims and pods
that belong together are one group: its use is compared with what its claims have together.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from driver.model.claims import AllocatedClaim, Record
from driver.model.ids import ClaimUid, GpuUuid
from driver.model.shares import Share
from driver.model.units import Bytes, whole_mib
from driver.model.usage import ProcessUse

# MPS rounds a percentage up to whole units of multiprocessors, and a sample is of one moment.
COMPUTE_SLACK = 5
_NAMED = 8  # processes in a text
PATIENCE = 2  # looks in a row that find the same before it is said, or taken back

Key: TypeAlias = tuple[ClaimUid, GpuUuid]


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a claim may use of one card, all of its shares of it together."""

    claim: AllocatedClaim
    gpu: GpuUuid
    memory: Bytes | None  # None: no limit
    compute_percent: int | None  # None: no limit

    @property
    def key(self) -> Key:
        return self.claim.uid, self.gpu


@dataclass(frozen=True, slots=True)
class Excess:
    """A claim whose pods use more of a card than they may."""

    claim: AllocatedClaim
    gpu: GpuUuid
    text: str  # what is used and what was given, for people
    pods: tuple[str, ...]  # UIDs of the pods whose processes were counted, sorted
    memory: bool = True  # whether memory is too much, which others may lack

    @property
    def key(self) -> Key:
        return self.claim.uid, self.gpu


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known between two looks."""

    told: Mapping[Key, Excess] = field(default_factory=dict)
    doubts: Mapping[Key, int] = field(default_factory=dict)  # looks in a row that say otherwise


def allowances(records: Iterable[Record]) -> tuple[Allowance, ...]:
    """What the claims of ``records`` have of shared cards, in their order.

    The memory of a time slice is bookkeeping; where it is counted at all, it is what the claim
    said it would use.
    """
    found: dict[Key, Allowance] = {}
    for record in records:
        for held in record.held:
            if held.share is None or held.allocation.admin:
                continue
            mine = _allowance(record.claim, held.gpu, held.type, held.share)
            earlier = found.get(mine.key)
            found[mine.key] = mine if earlier is None else _both(earlier, mine)
    return tuple(found.values())


def _allowance(claim: AllocatedClaim, gpu: GpuUuid, type_: str, share: Share) -> Allowance:
    percent = share.compute_percent if type_ == "mps" else 0
    return Allowance(claim, gpu, share.memory or None, percent or None)


def _both(one: Allowance, other: Allowance) -> Allowance:
    memory = None
    if one.memory is not None and other.memory is not None:
        memory = Bytes(one.memory + other.memory)
    percent = None
    if one.compute_percent is not None and other.compute_percent is not None:
        percent = one.compute_percent + other.compute_percent
    return Allowance(one.claim, one.gpu, memory, percent)


def judged(
    allowances: Iterable[Allowance],
    uses: Mapping[GpuUuid, Iterable[ProcessUse]],
    pods: Mapping[ClaimUid, Set[str]],
) -> Set[Key]:
    """The claims and cards that ``excesses`` can say something of."""
    return {each.key for each in allowances if each.gpu in uses and each.claim.uid in pods}


def excesses(
    allowances: Iterable[Allowance],
    uses: Mapping[GpuUuid, Iterable[ProcessUse]],
    pods: Mapping[ClaimUid, Set[str]],
) -> tuple[Excess, ...]:
    """The claims that use too much now, in their order.

    ``uses`` has the processes of each card that could be read, ``pods`` the UIDs of the pods that
    may use a claim; claims and cards that are missing there are not judged.
    """
    found: list[Excess] = []
    by_card: dict[GpuUuid, list[Allowance]] = {}
    for each in allowances:
        by_card.setdefault(each.gpu, []).append(each)
    for gpu, there in by_card.items():
        for group, members in _groups(there, pods):
            counted = [use for use in uses.get(gpu, ()) if use.pod in members]
            parts = _too_much(group, counted)
            if parts:
                text = _text(group, parts, counted)
                users = tuple(sorted({use.pod for use in counted if use.pod}))
                memory = "memory" in parts
                found += [Excess(each.claim, gpu, text, users, memory) for each in group]
    return tuple(found)


def look(
    before: Watched, found: Iterable[Excess], judged: Set[Key]
) -> tuple[Watched, tuple[Excess, ...], tuple[Excess, ...]]:
    """After one look: what is known then, what is to be told, and what is to be taken back.

    ``judged`` are the claims and cards that could be looked at: of others that were told of, the
    state stays; ``forget`` removes those that are released.
    """
    now = {each.key: each for each in found}
    told, doubts = dict(before.told), dict(before.doubts)
    fresh: list[Excess] = []
    over: list[Excess] = []
    for key in sorted(judged):
        if (key in now) == (key in told):
            doubts.pop(key, None)
            continue
        doubts[key] = doubts.get(key, 0) + 1
        if doubts[key] < PATIENCE:
            continue
        del doubts[key]
        if key in now:
            told[key] = now[key]
            fresh.append(now[key])
        else:
            over.append(told.pop(key))
    return Watched(told, doubts), tuple(fresh), tuple(over)


def forget(known: Watched, held: Set[Key]) -> Watched:
    """Without claims that hold nothing (of the card) any more."""
    return Watched(
        {key: each for key, each in known.told.items() if key in held},
        {key: count for key, count in known.doubts.items() if key in held},
    )


def _groups(
    allowances: Sequence[Allowance], pods: Mapping[ClaimUid, Set[str]]
) -> list[tuple[list[Allowance], frozenset[str]]]:
    """Claims of one card that share pods, directly or through others, with all of these pods."""
    groups: list[tuple[list[Allowance], frozenset[str]]] = []
    for each in allowances:
        mine = frozenset(pods.get(each.claim.uid, ()))
        if not mine:
            continue
        joined = [(group, theirs) for group, theirs in groups if mine & theirs]
        groups = [entry for entry in groups if entry not in joined]
        members = [one for group, _ in joined for one in group]
        groups.append(([*members, each], mine.union(*(theirs for _, theirs in joined))))
    return groups


def _too_much(group: Sequence[Allowance], uses: Sequence[ProcessUse]) -> dict[str, str]:
    """What a group uses beyond what its claims have: a text by what it is of."""
    parts = {}
    limits = [each.memory for each in group]
    memory, given = sum(use.memory or 0 for use in uses), sum(limit or 0 for limit in limits)
    if None not in limits and memory > given:
        used, had = whole_mib(Bytes(memory)), whole_mib(Bytes(given))
        parts["memory"] = f"{used} of memory, {had} was given"
    shares = [each.compute_percent for each in group]
    compute = sum(use.compute_percent or 0 for use in uses)
    percent = sum(share or 0 for share in shares)
    if None not in shares and compute > percent + COMPUTE_SLACK:
        parts["compute"] = f"{compute} % of the multiprocessors, {percent} % was given"
    return parts


def _text(group: Sequence[Allowance], parts: Mapping[str, str], uses: Sequence[ProcessUse]) -> str:
    together = ""
    if len(group) > 1:
        names = ", ".join(f"{each.claim.namespace}/{each.claim.name}" for each in group)
        together = f" (the claims {names} have pods in common and are counted together)"
    processes = ", ".join(f"{use.name or '?'} ({use.pid})" for use in uses[:_NAMED])
    more = f" and {len(uses) - _NAMED} more" if len(uses) > _NAMED else ""
    return f"uses {' and '.join(parts.values())}{together}: processes {processes}{more}"
