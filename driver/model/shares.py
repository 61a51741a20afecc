"""Shares of a card: what claims consumed of it, and what their limits are worth."""

from dataclasses import dataclass

from driver.model.steps import TimeSliceInterval
from driver.model.units import Bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """By what limits hold: of ``api.v1alpha1.ENFORCEMENT``, from "none" to "hardware"."""

    memory: str
    compute: str


@dataclass(frozen=True, slots=True)
class MpsFacts:
    """What the node's MPS control program can do, as its supervisor tells."""

    protocols: tuple[int, ...] = (2,)  # 3 from driver R615 on
    multi_user: bool = False  # False: pods of other UIDs wait until the card is idle


@dataclass(frozen=True, slots=True)
class SharingFacts:
    """What the node has for sharing its cards. Kept while something is briefly away: an answer
    that is missing is no reason to withdraw devices."""

    mps: MpsFacts | None = None  # None: no supervisor has ever answered
    intervals: bool = False  # whether time slices can be set (``nvidia-smi compute-policy``)
    no_cgroup: str = "not looked at yet"  # why pods have no limits by cgroup; empty: they have


@dataclass(frozen=True, slots=True)
class Consumed:
    """``consumedCapacity`` of one allocation; None where it is not there."""

    memory: Bytes | None = None
    compute_percent: int | None = None
    shares: int | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the configs of class and claim say together of a share."""

    memory_limit: Bytes | None = None  # not above this, in whole MiB
    percent_limit: int | None = None  # 1 to 100
    require: str = "none"  # of ENFORCEMENT
    interval: TimeSliceInterval | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What an allocation has of a shared card, and what is done about it."""

    memory: Bytes  # consumed, in whole MiB; of time slices only bookkeeping
    compute_percent: int  # consumed; 0: no cap
    limits: Limits
    memory_limit: Bytes | None = None  # enforced, for each process; None: nothing is
    percent_limit: int | None = None  # enforced, 1 to 100; None: no cap
    multi_user: bool = True
    namespace: str | None = None  # of MPS with protocol 3
    interval: TimeSliceInterval | None = None  # of a time slice, where anybody asked for one
