"""NVML's return codes in words, and as errors of ours.

Static, because pynvml asks the library for the text of an error, which is no help when the
library is the problem.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

from driver.errors import (
    DeviceBusyError,
    GpuLostError,
    HardwareError,
    NoPermissionError,
    NotSupportedError,
    NvmlMissingError,
)

_T = TypeVar("_T")


class Return(IntEnum):
    """``nvmlReturn_t`` of NVML API 13 (nvml.h)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


_ERRORS: dict[int, type[HardwareError]] = {
    Return.GPU_IS_LOST: GpuLostError,
    Return.RESET_REQUIRED: GpuLostError,
    Return.IN_USE: DeviceBusyError,
    Return.NOT_SUPPORTED: NotSupportedError,
    Return.FUNCTION_NOT_FOUND: NotSupportedError,
    Return.ARGUMENT_VERSION_MISMATCH: NotSupportedError,
    Return.NO_PERMISSION: NoPermissionError,
    Return.LIBRARY_NOT_FOUND: NvmlMissingError,
    Return.DRIVER_NOT_LOADED: NvmlMissingError,
    Return.UNINITIALIZED: NvmlMissingError,
    Return.LIB_RM_VERSION_MISMATCH: NvmlMissingError,
}

_REMEDIES: dict[int, str] = {
    Return.LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found; install the NVIDIA driver, or set the driver root to "
        "the folder under which it is mounted"
    ),
    Return.DRIVER_NOT_LOADED: (
        "the library is there but no kernel driver answers; load the module nvidia "
        "(modprobe nvidia) and look into dmesg"
    ),
    Return.UNINITIALIZED: (
        "NVML is not initialised, or the driver was reloaded; NVML must be opened again"
    ),
    Return.LIB_RM_VERSION_MISMATCH: (
        "library and kernel module are of different versions; reload the module, or reboot "
        "after a driver update"
    ),
    Return.GPU_IS_LOST: "the card fell off the bus; reset it or reboot the node",
    Return.RESET_REQUIRED: "the card must be reset (nvidia-smi --gpu-reset)",
    Return.IN_USE: "a process still uses the card",
    Return.NO_PERMISSION: "the driver must run as root with CAP_SYS_ADMIN",
    Return.NOT_FOUND: "NVML does not list it (any more)",
}


def describe(code: int) -> str:
    """``code`` in words: ``"IN_USE (19): a process still uses the card"``."""
    try:
        text = f"{Return(code).name} ({code})"
    except ValueError:
        text = f"return code {code}"
    remedy = _REMEDIES.get(code)
    return f"{text}: {remedy}" if remedy else text


def error_of(call: str, code: int) -> HardwareError:
    """The error for ``code``, returned by ``call``; HardwareError where no class fits better."""
    return _ERRORS.get(code, HardwareError)(call, describe(code), code)


def optional(read: Callable[[], _T | None]) -> _T | None:
    """What ``read`` returns, or None where card or driver do not tell.

    A lost card or a vanished library is not "does not tell": GpuLostError and NvmlMissingError
    pass.
    """
    try:
        return read()
    except (GpuLostError, NvmlMissingError):
        raise
    except HardwareError:
        return None
