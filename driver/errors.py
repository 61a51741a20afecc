"""Every error the driver raises on purpose.

Two questions decide the class: whose fault is it, and how much does it stop? Messages name the
object, what was found, what was wanted and the setting that changes it.
"""

from collections.abc import Sequence


class DriverError(Exception):
    """Base class. Caught only at the per-claim boundary and in ``main``.

    Its text includes the notes: a roll-back that is not finished reaches the pod and the log too.
    """

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *getattr(self, "__notes__", ())])


class ClaimError(DriverError):
    """This claim cannot be prepared as it stands; others are unaffected."""


class InvalidConfigError(ClaimError):
    """Opaque parameters are wrong. Carries every problem found, each with its JSON path."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class UnknownDeviceError(ClaimError):
    """The allocation names a device or pool that this node does not have (any more)."""


class DeviceConflictError(ClaimError):
    """Another prepared claim holds what this one needs."""


class DeviceHeldError(DeviceConflictError):
    """Another claim holds the device, perhaps only until its unprepare that is under way; or a
    process does that may be ending."""


class HardwareError(DriverError):
    """NVML or the kernel refused. Trying again later may succeed."""

    def __init__(self, call: str, reason: str, code: int | None = None) -> None:
        super().__init__(f"{call}: {reason}")
        self.call = call
        self.reason = reason
        self.code = code


class NotSupportedError(HardwareError):
    """The card or the driver does not have this (NOT_SUPPORTED, FUNCTION_NOT_FOUND)."""


class NoPermissionError(HardwareError):
    """The process lacks the rights for the call (``NVML_ERROR_NO_PERMISSION``)."""


class DeviceBusyError(HardwareError):
    """A process still uses the device (``NVML_ERROR_IN_USE``)."""


class GpuLostError(HardwareError):
    """The GPU fell off the bus or needs a reset; only an admin can help."""


class NvmlMissingError(HardwareError):
    """No libnvidia-ml, or no kernel driver behind it."""


class StateError(DriverError):
    """The driver's own records cannot be trusted."""


class PolicyError(DriverError):
    """The node policy file is wrong. Carries every problem found."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        super().__init__(f"node policy {source}: " + "; ".join(problems))
        self.problems = tuple(problems)
