"""What the types of devices mean: one place that grows when a type joins the union."""

from typing import assert_never

from driver.model.claims import Held
from driver.model.devices import Device, MigPartition, MpsGpu, TimeSlicedGpu, WholeGpu
from driver.model.shares import Limits

# Exclusive use of a card or of a partition is a limit of the hardware.
HARDWARE = Limits(memory="hardware", compute="hardware")
NO_LIMITS = Limits(memory="none", compute="none")


def device_type(device: Device) -> str:
    """The attribute ``type``, which records keep too."""
    match device:
        case WholeGpu():
            return "gpu"
        case MigPartition():
            return "mig"
        case MpsGpu():
            return "mps"
        case TimeSlicedGpu():
            return "timeslice"
        case _:
            assert_never(device)


def limits_of(device: Device) -> Limits:
    """What the limits of those who hold the device are worth (design 9.1)."""
    match device:
        case WholeGpu() | MigPartition():
            return HARDWARE
        case MpsGpu(limits=limits):
            return limits
        case TimeSlicedGpu():
            return NO_LIMITS
        case _:
            assert_never(device)


def limits_of_held(held: Held) -> Limits:
    """The same of what a record has; it outlives the device."""
    if held.allocation.admin:
        return NO_LIMITS
    return HARDWARE if held.share is None else held.share.limits
