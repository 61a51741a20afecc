"""The devices this node can offer to the scheduler."""

from dataclasses import dataclass
from typing import TypeAlias

from driver.model.gpu import Gpu, MigProfile
from driver.model.ids import DeviceName
from driver.model.mig import Placement


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


Device: TypeAlias = WholeGpu | MigPartition  # a closed union: shared devices join it
