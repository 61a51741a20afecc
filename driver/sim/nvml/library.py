"""The object that stands where pynvml keeps its ``CDLL``."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driver.sim.nvml import (
    device,
    events,
    health,
    instances,
    limits,
    links,
    mig,
    migdevice,
    system,
    usage,
)
from driver.sim.nvml.registry import SYMBOLS
from driver.sim.nvml.session import Session

# each enters its symbols on import
FAMILIES = (
    system,
    device,
    health,
    links,
    limits,
    mig,
    instances,
    migdevice,
    events,
    usage,
)


class Function:
    """A C function to pynvml, which sets ``restype`` on some of them."""

    __slots__ = ("argtypes", "call", "restype")

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.argtypes: Any = None
        self.restype: Any = ctypes.c_int

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)


class Library:
    """Simulated ``libnvidia-ml.so.1``. A symbol that is not there raises AttributeError.

    One that an older driver lacks is there and answers FUNCTION_NOT_FOUND while that driver is
    installed: pynvml makes the same error of both, and keeps what it found for good.
    """

    def __init__(self, root: Path) -> None:
        self._session = Session(root)

    def __getattr__(self, name: str) -> Function:
        symbol = SYMBOLS.get(name)
        if symbol is None:
            raise AttributeError(name)
        return Function(self._session.bind(symbol))
