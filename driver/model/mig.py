"""Partitions of a card by position: what survives every re-creation of an instance."""

from dataclasses import dataclass
from typing import TypeAlias

from driver.model.gpu import DeviceNode
from driver.model.ids import GpuUuid
from driver.model.units import Bytes


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """Where a partition lies, in memory slices of its card (``nvmlGpuInstancePlacement_t``)."""

    start: int
    size: int

    def overlaps(self, other: "Placement") -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        last = self.start + self.size - 1
        if self.size == 1:
            return f"memory slice {self.start}"
        return f"memory slices {self.start} to {last}"


Place: TypeAlias = tuple[GpuUuid, Placement | None]  # a part of a card; None: all of it


def overlap(a: Placement | None, b: Placement | None) -> bool:
    """Whether two parts of one card have a memory slice in common; None is the whole card."""
    return a is None or b is None or a.overlaps(b)


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance that exists. Its ids are reused after it is gone: never for records."""

    profile_id: int
    placement: Placement
    id: int
    compute: tuple[int, ...] = ()  # ids of its compute instances; none: half made


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A partition as a container needs it."""

    uuid: str  # "MIG-…"
    memory: Bytes  # what the process sees as its total
    nodes: tuple[DeviceNode, ...]  # the capabilities of the GPU and the compute instance
