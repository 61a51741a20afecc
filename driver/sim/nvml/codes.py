"""NVML return codes (``nvmlReturn_t`` of nvml.h) and their texts."""

from typing import Final

SUCCESS: Final = 0
UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23
VERSION_MISMATCH: Final = 25
UNKNOWN: Final = 999

TEXTS: Final[dict[int, bytes]] = {
    SUCCESS: b"Success",
    UNINITIALIZED: b"Uninitialized",
    INVALID_ARGUMENT: b"Invalid Argument",
    NOT_SUPPORTED: b"Not Supported",
    NO_PERMISSION: b"Insufficient Permissions",
    NOT_FOUND: b"Not Found",
    INSUFFICIENT_SIZE: b"Insufficient Size",
    DRIVER_NOT_LOADED: b"Driver Not Loaded",
    TIMEOUT: b"Timeout",
    LIBRARY_NOT_FOUND: b"NVML Shared Library Not Found",
    FUNCTION_NOT_FOUND: b"Function Not Found",
    GPU_IS_LOST: b"GPU is lost",
    RESET_REQUIRED: b"GPU requires reset",
    IN_USE: b"In use by another client",
    INSUFFICIENT_RESOURCES: b"Insufficient Resources",
    VERSION_MISMATCH: b"Argument version mismatch",
    UNKNOWN: b"Unknown Error",
}


class Refused(Exception):  # noqa: N818 - an answer, not a fault of the program
    """Ends a simulated call with an NVML code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
