"""What the node policy says of shares: the part of a rule below ``gpus``.

Example::

    - select: {all: true}
      modes: [gpu, mps, timeslice]
      defaultShares: 4               # a claim without numbers gets a quarter; default: all of it
      reserve: 1Gi                   # of each card, not given to shares
      timeSlice: {interval: Long, replicas: 8}
      eviction: never                # or overMemory: pods that use more than their share may be
    - select: {product: "*L4*"}      # evicted
      modes: [mps]
      shareSize: {memory: 5Gi, computePercent: 25}   # all shares alike: a limit for any process
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from api.quantities import read_memory
from api.reading import Reader, join

Interval: TypeAlias = Literal["Default", "Short", "Medium", "Long"]
Eviction: TypeAlias = Literal["never", "overMemory"]

INTERVALS = get_args(Interval)
MOST_SHARES = 48  # clients that one MPS server takes on a card (Volta and newer)
FIELDS = ("defaultShares", "shareSize", "reserve", "timeSlice", "eviction")
_SHARE_SIZE = ("memory", "computePercent")
_TIME_SLICE = ("interval", "replicas")


@dataclass(frozen=True, slots=True)
class ShareSize:
    """What every share of a card is. Equal shares let the control daemon's own defaults be the
    limit, which no client can leave."""

    memory: int  # bytes, whole MiB
    compute_percent: int | None = None  # 1 to 100; None: no cap


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a card is shared."""

    default_shares: int | None = None  # 1 to 48; None: who asks for nothing gets the whole card
    share_size: ShareSize | None = None  # MPS only; None: claims ask for what they need
    reserve: int = 0  # bytes of the card that no share gets
    interval: Interval | None = None  # of time slices; None: left alone
    replicas: int = MOST_SHARES  # claims that take turns on one card at most
    eviction: Eviction = "never"


def read_sharing(reader: Reader, path: str, raw: Mapping[Any, Any]) -> Sharing:
    """The fields ``FIELDS`` of a rule; what is wrong is added to ``reader.problems``."""
    count = reserve = None
    if "defaultShares" in raw:
        where = join(path, "defaultShares")
        count = reader.integer(where, raw["defaultShares"], 1, MOST_SHARES)
        if "shareSize" in raw:
            reader.problems.append(f"{where}: stands beside shareSize, which says it; remove one")
    if "reserve" in raw:
        reserve = read_memory(reader, join(path, "reserve"), raw["reserve"], low=0)
    eviction = None
    if "eviction" in raw:
        eviction = reader.choice(join(path, "eviction"), raw["eviction"], get_args(Eviction))
    interval, replicas = _time_slice(reader, join(path, "timeSlice"), raw.get("timeSlice", {}))
    return Sharing(
        default_shares=count,
        share_size=_share_size(reader, path, raw) if "shareSize" in raw else None,
        reserve=reserve or 0,
        interval=cast(Interval | None, interval),
        replicas=replicas or MOST_SHARES,
        eviction=cast(Eviction, eviction or "never"),
    )


def _share_size(reader: Reader, path: str, rule: Mapping[Any, Any]) -> ShareSize | None:
    where = join(path, "shareSize")
    raw = reader.mapping(where, rule["shareSize"], "a mapping with memory and computePercent")
    reader.only(where, raw, _SHARE_SIZE)
    percent = None
    if "computePercent" in raw:
        percent = reader.integer(join(where, "computePercent"), raw["computePercent"], 1, 100)
    if "memory" not in raw:
        reader.problems.append(f"{join(where, 'memory')}: missing")
        return None
    memory = read_memory(reader, join(where, "memory"), raw["memory"])
    return None if memory is None else ShareSize(memory, percent)


def _time_slice(reader: Reader, path: str, value: object) -> tuple[str | None, int | None]:
    raw = reader.mapping(path, value, "a mapping with interval and replicas")
    reader.only(path, raw, _TIME_SLICE)
    interval = replicas = None
    if "interval" in raw:
        interval = reader.choice(join(path, "interval"), raw["interval"], INTERVALS)
    if "replicas" in raw:
        replicas = reader.integer(join(path, "replicas"), raw["replicas"], 1, MOST_SHARES)
    return interval, replicas
