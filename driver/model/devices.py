"""The devices this node can offer to the scheduler."""

from dataclasses import dataclass
from typing import TypeAlias

from driver.model.gpu import Gpu
from driver.model.ids import DeviceName


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A whole card, for one claim at a time (type ``gpu``)."""

    name: DeviceName
    gpu: Gpu


Device: TypeAlias = WholeGpu  # a closed union: shared devices and partitions join it
