"""What the types of devices mean: one place that grows when a type joins the union."""

from dataclasses import dataclass
from typing import assert_never

from driver.model.devices import Device, MigPartition, WholeGpu


@dataclass(frozen=True, slots=True)
class Limits:
    """By what limits hold (design 9.1): from "none", which only counts, to "hardware"."""

    memory: str
    compute: str


# Exclusive use of a card or of a partition is a limit of the hardware.
_HARDWARE = Limits(memory="hardware", compute="hardware")
_LIMITS = {"gpu": _HARDWARE, "mig": _HARDWARE}


def device_type(device: Device) -> str:
    """The attribute ``type``, which records keep too."""
    match device:
        case WholeGpu():
            return "gpu"
        case MigPartition():
            return "mig"
        case _:
            assert_never(device)


def limits_of_type(type_: str) -> Limits:
    """The limits of a type that ``device_type`` gave; they outlive the device in records."""
    return _LIMITS[type_]
