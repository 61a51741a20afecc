"""Changes to the node, as values.

A step names its target by position, never by an id that only exists afterwards, so its inverse
is known before it runs, and equal steps of two claims are one effect.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from driver.model.gpu import ComputeMode
from driver.model.ids import GpuUuid
from driver.model.mig import Placement


@dataclass(frozen=True, slots=True)
class SetComputeMode:
    """Give the card ``mode`` while claimed. Its inverse is NVML's default mode, on purpose not
    "what was there before": a mode that somebody left behind must not outlive a claim
    (dra-driver-nvidia-gpu#1262)."""

    gpu: GpuUuid
    mode: ComputeMode


@dataclass(frozen=True, slots=True)
class EnsureMigMode:
    """The card is in MIG mode, or not. A state of the card: there is nothing to take back, the
    next claim that needs it otherwise changes it. Where ``toggle`` is not allowed the mode is
    only checked."""

    gpu: GpuUuid
    on: bool
    toggle: bool


@dataclass(frozen=True, slots=True)
class CreateMigDevice:
    """A GPU instance of this profile at this place, with one compute instance over all of it.
    Its inverse destroys what lies there with this profile."""

    gpu: GpuUuid
    profile: str  # "1g.10gb", for people
    profile_id: int  # for NVML
    placement: Placement


class TimeSliceInterval(Enum):
    """Values of ``nvidia-smi compute-policy --set-timeslice``."""

    DEFAULT = 0
    SHORT = 1
    MEDIUM = 2
    LONG = 3


@dataclass(frozen=True, slots=True)
class ServeMps:
    """The card's MPS control daemon runs with these defaults, set before its first server. Its
    inverse stops the daemon. They are a state of the card, never a claim's: all shares of a card
    that live at the same time have the same value."""

    gpu: GpuUuid
    memory_limit: int | None  # bytes, in whole MiB, for each client process; None: unset
    compute_percent: int | None  # 1 to 100; None: unset
    protocol: int  # 2, or 3 (driver R615 and newer)

    @property
    def has_namespaces(self) -> bool:
        """Whether each share has one, with limits of its own."""
        return self.protocol >= 3


@dataclass(frozen=True, slots=True)
class MpsNamespace:
    """A namespace of the card's daemon with limits of its own (protocol 3 only), which its
    clients cannot raise. Its inverse deletes the namespace."""

    gpu: GpuUuid
    name: str  # [a-z0-9_]{1,64}, of claim UID and position
    memory_limit: int | None  # as in ServeMps
    compute_percent: int | None


@dataclass(frozen=True, slots=True)
class LimitPod:
    """What a claim gives a pod of the card's memory (NVML's limits by cgroup, R615 and newer). A
    pod has one limit for each card, the sum of what its claims give it: it is worked out from the
    records before the step is done. The inverse takes this part of it away."""

    gpu: GpuUuid
    pod: str  # UID
    memory: int  # bytes, in whole MiB


@dataclass(frozen=True, slots=True)
class SetTimeSlice:
    """How long a process may run before another gets its turn. Its inverse is DEFAULT."""

    gpu: GpuUuid
    interval: TimeSliceInterval


Step: TypeAlias = (
    SetComputeMode
    | EnsureMigMode
    | CreateMigDevice
    | ServeMps
    | MpsNamespace
    | LimitPod
    | SetTimeSlice
)
