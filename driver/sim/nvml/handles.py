"""Opaque handles as numbers: which card, and which of its instances.

``base + generation + card + kind + GPU instance + compute instance``. The numbers of instances
are reused when their ids are, as NVML may do.
"""

from typing import Final, NamedTuple

from driver.sim.nvml.codes import INVALID_ARGUMENT, Refused

CARD: Final = 0
GPU_INSTANCE: Final = 1
COMPUTE_INSTANCE: Final = 2
MIG_DEVICE: Final = 3

_BASE = 0x7F00_0000_0000
_GENERATION = 1 << 24  # handles of an earlier nvmlInit are not valid
_CARD = 1 << 12
_KIND = 1 << 10
_INSTANCE = 1 << 4


class Handle(NamedTuple):
    """What a handle stands for."""

    card: int  # its index
    kind: int = CARD
    gpu_instance: int = 0
    compute_instance: int = 0


def encode(handle: Handle, generation: int) -> int:
    """The number that the caller gets."""
    card, kind, gpu_instance, compute_instance = handle
    number = _BASE + generation * _GENERATION + (card + 1) * _CARD
    return number + kind * _KIND + gpu_instance * _INSTANCE + compute_instance


def decode(number: int, generation: int, cards: int) -> Handle:
    """The inverse of ``encode``.

    Raises:
        Refused: INVALID_ARGUMENT for what is no handle of this initialisation.
    """
    card, rest = divmod(number - _BASE - generation * _GENERATION, _CARD)
    if not 0 < card <= cards:
        raise Refused(INVALID_ARGUMENT)
    if not rest:
        return Handle(card - 1)
    kind, instance = divmod(rest, _KIND)
    return Handle(card - 1, kind, *divmod(instance, _INSTANCE))
