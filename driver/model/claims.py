"""Claims before and after preparation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from driver.model.gpu import ComputeMode
from driver.model.ids import ClaimUid, DeviceName, GpuUuid, RequestName
from driver.model.mig import Place, Placement
from driver.model.shares import Consumed, Share, Wishes
from driver.model.steps import Step


@dataclass(frozen=True, slots=True)
class Allocation:
    """One result of ``status.allocation.devices.results`` that belongs to this driver."""

    position: int  # index among all results, other drivers' included; names the CDI device
    request: RequestName
    pool: str
    device: DeviceName
    share_id: str | None = None  # only devices that are allocated many times
    admin: bool = False  # adminAccess: neither conflicts nor counts (KEP-5018)
    compute_mode: ComputeMode | None = None  # from the opaque config; None: leave the card's
    consumed: Consumed | None = None  # only devices that are allocated many times
    wishes: Wishes = field(default_factory=Wishes)  # from the opaque config


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A ResourceClaim reduced to what this driver acts on."""

    uid: ClaimUid
    namespace: str
    name: str
    allocations: tuple[Allocation, ...]  # in the API's order

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}:{self.uid}"


class ClaimState(Enum):
    STARTED = "PrepareStarted"  # intent is on disk; hardware may be half changed
    COMPLETED = "PrepareCompleted"  # every step took effect


@dataclass(frozen=True, slots=True)
class Held:
    """What an allocation holds, kept so that it counts even when its device is gone."""

    allocation: Allocation
    gpu: GpuUuid
    type: str  # "gpu", "mig", "mps" or "timeslice"; a share that is all of its card is "gpu"
    placement: Placement | None = None  # of a partition; None: the whole card
    profile: str | None = None  # of a partition, "1g.10gb"
    share: Share | None = None  # of a card that others may have shares of too

    @property
    def place(self) -> Place:
        return self.gpu, self.placement


@dataclass(frozen=True, slots=True)
class Record:
    """What the journal keeps of a claim: what was done, or begun, for it."""

    claim: AllocatedClaim
    held: tuple[Held, ...]  # one for each allocation, in the same order
    steps: tuple[Step, ...]  # in the order they are done; undone in reverse
    state: ClaimState
    boot_id: str  # of the boot in which the steps took effect
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)  # unknown fields, kept

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        """The cards it touches, sorted: the order in which their lanes are taken."""
        return tuple(sorted({held.gpu for held in self.held}))

    @property
    def places(self) -> tuple[Place, ...]:
        """What it holds of which card; admin access holds nothing."""
        return tuple(held.place for held in self.held if not held.allocation.admin)
