"""The devices this node can offer to the scheduler."""

from dataclasses import dataclass
from typing import TypeAlias

from driver.model.gpu import Gpu, MigProfile
from driver.model.ids import DeviceName
from driver.model.mig import Placement
from driver.model.shares import Limits
from driver.model.steps import ServeMps, TimeSliceInterval
from driver.model.units import Bytes


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A whole card, for one claim at a time (type ``gpu``)."""

    name: DeviceName
    gpu: Gpu
    toggle: bool | None = None  # may turn MIG mode off; None: the card is never partitioned


@dataclass(frozen=True, slots=True)
class MigPartition:
    """A partition that is made for a claim and destroyed after it, or an adopted one that
    somebody else made and that stays (type ``mig``)."""

    name: DeviceName
    gpu: Gpu
    profile: MigProfile
    start: int  # in memory slices
    toggle: bool = False  # may turn MIG mode on
    adopted: bool = False

    @property
    def placement(self) -> Placement:
        return Placement(self.start, self.profile.size)


@dataclass(frozen=True, slots=True)
class MpsGpu:
    """A card that claims share at the same time, each with its own limits (type ``mps``)."""

    name: DeviceName
    gpu: Gpu
    memory: Bytes  # to be shared, in whole MiB: not what the driver or the policy reserves
    serve: ServeMps  # how its control daemon runs
    limits: Limits  # what the limits of its shares are worth
    default_memory: Bytes  # what a claim that asks for nothing consumes
    default_percent: int = 0  # 0: no cap
    shares: int = 48  # claims at once
    equal: bool = False  # all shares are of the default size, and nobody gets another
    multi_user: bool = False
    toggle: bool | None = None  # as of WholeGpu
    no_cgroup: str = ""  # why its memory is not limited by cgroup, where it is not

    @property
    def whole_by_default(self) -> bool:
        """Whether a claim that asks for nothing gets all of the card."""
        return self.default_memory == self.memory and self.default_percent in (0, 100)


@dataclass(frozen=True, slots=True)
class TimeSlicedGpu:
    """A card that claims use in turns, without any limit (type ``timeslice``)."""

    name: DeviceName
    gpu: Gpu
    memory: Bytes  # for bookkeeping; 0: the card has none of its own
    shares: int = 48
    interval: TimeSliceInterval | None = None  # the policy's; None: left alone
    settable: bool = False  # whether the node can set intervals
    toggle: bool | None = None  # as of WholeGpu


SharedGpu: TypeAlias = MpsGpu | TimeSlicedGpu
Device: TypeAlias = WholeGpu | MigPartition | MpsGpu | TimeSlicedGpu  # a closed union
