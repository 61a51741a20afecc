"""Reading and writing C arguments as pynvml passes them: ints, ``c_uint``, ``byref()``, arrays."""

import ctypes
from collections.abc import Sequence
from typing import Any

from driver.sim.nvml.codes import INSUFFICIENT_SIZE, INVALID_ARGUMENT, VERSION_MISMATCH, Refused

_POINTER_BASE: Any = ctypes._Pointer


def number(value: Any) -> int:
    """An integer argument: pynvml passes int or a simple ctypes value."""
    return value if type(value) is int else int(value.value)


def target(pointer: Any) -> Any:
    """What a pointer argument points to.

    Raises:
        Refused: a null pointer.
        TypeError: not a pointer; the real library would crash the process here.
    """
    if pointer is None:
        raise Refused(INVALID_ARGUMENT)
    pointed = getattr(pointer, "_obj", None)  # ctypes.byref()
    if pointed is not None:
        return pointed
    if isinstance(pointer, ctypes.Array):
        return pointer
    if isinstance(pointer, _POINTER_BASE):
        return pointer.contents
    raise TypeError(f"NVML wants a pointer here, got {pointer!r}: use ctypes.byref()")


def put(pointer: Any, value: int) -> int:
    """Write an integer through a pointer; returns SUCCESS."""
    target(pointer).value = value
    return 0


def put_text(buffer: Any, size: Any, text: str) -> int:
    """Write a text and its final zero into a buffer of ``size`` bytes; returns SUCCESS."""
    raw = text.encode()
    if len(raw) >= number(size):
        raise Refused(INSUFFICIENT_SIZE)
    target(buffer).value = raw
    return 0


def put_handle(pointer: Any, value: int) -> int:
    """Write an opaque handle through a pointer to it; returns SUCCESS."""
    ctypes.c_void_p.from_buffer(target(pointer)).value = value
    return 0


def put_handle_field(struct: Any, name: str, value: int) -> None:
    """Write an opaque handle into a field of a struct."""
    offset = getattr(type(struct), name).offset
    ctypes.c_void_p.from_buffer(struct, offset).value = value


def put_handle_array(array: Any, values: Sequence[int]) -> None:
    """Write opaque handles into the caller's array, which is large enough by contract."""
    if values:
        cells = (ctypes.c_void_p * len(values)).from_buffer(target(array))
        cells[:] = list(values)


def handle_value(handle: Any) -> int:
    """The number behind an opaque handle, 0 for a null one."""
    if handle is None or isinstance(handle, int):
        return handle or 0
    return ctypes.c_void_p.from_buffer(handle).value or 0


def text(value: Any) -> str:
    """A ``char *`` argument: pynvml passes ``c_char_p``."""
    raw = value if isinstance(value, bytes) else value.value
    if raw is None:
        raise Refused(INVALID_ARGUMENT)
    return bytes(raw).decode(errors="replace")


def check_version(struct: Any, *accepted: int) -> int:
    """The version field of a versioned struct, which must be one of ``accepted``."""
    version = int(struct.version)
    if version not in accepted:
        raise Refused(VERSION_MISMATCH)
    return version


def room(count: Any, array: Any, needed: int) -> Any:
    """The caller's array for ``needed`` entries, or None when there is nothing to write.

    NVML's size protocol: the count is set to what is needed; too small an array (or none) is
    INSUFFICIENT_SIZE.
    """
    counter = target(count)
    offered = int(counter.value) if array is not None else 0
    counter.value = needed
    if needed > offered:
        raise Refused(INSUFFICIENT_SIZE)
    return target(array) if needed else None


def fill(struct: Any, names: Sequence[str], values: Sequence[Any]) -> None:
    """Set fields of a struct by name."""
    for name, value in zip(names, values, strict=True):
        setattr(struct, name, value)
