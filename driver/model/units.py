"""Quantities with the unit in the type."""

from typing import NewType

Bytes = NewType("Bytes", int)  # >= 0

_MIB = 1 << 20


def from_mib(mib: int) -> Bytes:
    """NVML reports MIG profile memory in MiB (``nvmlGpuInstanceProfileInfo_t``), all else in bytes."""
    return Bytes(mib * _MIB)


def whole_mib(size: Bytes) -> str:
    """``size`` rounded down to 1Mi, as a Kubernetes quantity: ``"81037Mi"``."""
    return f"{size // _MIB}Mi"
