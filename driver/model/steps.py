"""Changes to the node, as values.

A step names its target by position, never by an id that only exists afterwards, so its inverse
is known before it runs, and equal steps of two claims are one effect.
"""

from dataclasses import dataclass
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


Step: TypeAlias = SetComputeMode | EnsureMigMode | CreateMigDevice  # MPS steps join it
