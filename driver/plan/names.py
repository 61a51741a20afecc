"""Names of cards and devices, made from UUIDs: minors and indexes change over a reboot."""

import re
from collections.abc import Iterable, Mapping

from driver.model.ids import DeviceName, GpuUuid

_LENGTHS = (8, 16, 32)  # hex digits; a node whose cards share 8 uses 16 for all


def profile_label(profile: str) -> str:
    """A profile's name as part of a DNS label: ``1g.10gb+me`` is ``1g-10gb-me``, and a ``-me``
    is ``-nome``, or two profiles would share a name (design 3)."""
    return re.sub("[^a-z0-9]+", "-", profile.lower().replace("-me", "-nome"))


def partition_name(card: DeviceName, profile: str, start: int) -> DeviceName:
    """``gpu-3f0c2d5a-mig-1g-10gb-4``; ``start`` in memory slices."""
    return DeviceName(f"{card}-mig-{profile_label(profile)}-{start}")


def mps_name(card: DeviceName) -> DeviceName:
    """``gpu-3f0c2d5a-mps``."""
    return DeviceName(f"{card}-mps")


def timeslice_name(card: DeviceName) -> DeviceName:
    """``gpu-3f0c2d5a-timeslice``."""
    return DeviceName(f"{card}-timeslice")


def card_part(name: str) -> str:
    """The name of the card that a device is made of."""
    return re.split("-(?:mig|mps|timeslice)(?:-|$)", name, maxsplit=1)[0]


def device_names(uuids: Iterable[GpuUuid]) -> Mapping[GpuUuid, DeviceName]:
    """``gpu-<hex digits>`` for each card of the node, a DNS label.

    The whole card has this name; devices made of a part of it append to it.
    """
    digits = {uuid: re.sub("[^0-9a-f]", "", uuid.lower().removeprefix("gpu-")) for uuid in uuids}
    length = next(
        (n for n in _LENGTHS if len({d[:n] for d in digits.values()}) == len(digits)), _LENGTHS[-1]
    )
    return {uuid: DeviceName(f"gpu-{each[:length]}") for uuid, each in digits.items()}
