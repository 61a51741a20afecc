"""Changes to the node, as values.

A step names its target by position, never by an id that only exists afterwards, so its inverse
is known before it runs, and equal steps of two claims are one effect.
"""

from dataclasses import dataclass
from typing import TypeAlias

from driver.model.gpu import ComputeMode
from driver.model.ids import GpuUuid


@dataclass(frozen=True, slots=True)
class SetComputeMode:
    """Give the card ``mode`` while claimed. Its inverse is NVML's default mode, on purpose not
    "what was there before": a mode that somebody left behind must not outlive a claim
    (dra-driver-nvidia-gpu#1262)."""

    gpu: GpuUuid
    mode: ComputeMode


Step: TypeAlias = SetComputeMode  # a closed union: MIG and MPS steps join it
