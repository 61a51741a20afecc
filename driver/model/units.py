"""Quantities with the unit in the type."""

from typing import NewType

Bytes = NewType("Bytes", int)  # >= 0

_MIB = 1 << 20


def from_mib(mib: int) -> Bytes:
    """MIG profiles come in MiB (``nvmlGpuInstanceProfileInfo_t``), all else of NVML in bytes."""
    return Bytes(mib * _MIB)


def whole_mib(size: Bytes) -> str:
    """``size`` rounded down to 1Mi, as a Kubernetes quantity: ``"81037Mi"``."""
    return f"{size // _MIB}Mi"


def binary_quantity(size: Bytes) -> str:
    """``size`` rounded down to 1Mi, as the API server stores it: ``"80Gi"``, not ``"81920Mi"``.

    The canonical form (``resource.Quantity``) has the largest suffix that leaves a whole number;
    anything else would come back changed and look like a difference to publish again.
    """
    mib = size // _MIB
    return _canonical(mib, 1024, ("Mi", "Gi", "Ti", "Pi")) if mib else "0"


def decimal_quantity(count: int) -> str:
    """``count`` as the API server stores it: ``"132"``, ``"2k"``."""
    return _canonical(count, 1000, ("", "k", "M", "G")) if count else "0"


def _canonical(count: int, step: int, suffixes: tuple[str, ...]) -> str:
    for suffix in suffixes[:-1]:
        if count % step:
            return f"{count}{suffix}"
        count //= step
    return f"{count}{suffixes[-1]}"
