"""The table of simulated C symbols. Each family of calls adds its own to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Kind = Literal["free", "system", "lookup", "device", "gpu instance", "compute instance"]
Run = Callable[..., Any]
R = TypeVar("R", bound=Run)

# What the reference lists as missing from the 535 library is marked with this.
AFTER_535 = 536
R615 = 615  # memory limits by cgroup


@dataclass(frozen=True, slots=True)
class Symbol:
    """One C function.

    ``kind``: *free* runs without initialisation, *system* has no card, *lookup* returns the
    ``Handle`` for its last argument, *device* has the handle of a card first (with ``mig`` also
    that of a MIG device), the others that of a GPU or compute instance.
    """

    name: str
    kind: Kind
    run: Run
    since: int = 0  # first driver branch that has it
    privileged: bool = False  # needs root (nvml.h)
    mig: bool = False


SYMBOLS: dict[str, Symbol] = {}


def symbol(
    name: str,
    kind: Kind = "device",
    *,
    since: int = 0,
    privileged: bool = False,
    mig: bool = False,
) -> Callable[[R], R]:
    """Decorator: enter a function into the table under its C name."""

    def enter(run: R) -> R:
        SYMBOLS[name] = Symbol(name, kind, run, since, privileged, mig)
        return run

    return enter


def resolve(call: str) -> list[str]:
    """The C symbols behind a C or pynvml name (pynvml hides suffixes such as ``_v2``).

    Raises:
        ValueError: no such call is simulated.
    """
    if call == "nvmlInit":
        return ["nvmlInitWithFlags"]
    spelled = (call, *(call + tail for tail in ("V", "_v2", "_v3")))
    found = [name for name in spelled if name in SYMBOLS]
    if not found:
        raise ValueError(
            f"the simulator has no NVML call {call!r}; give a C symbol or a pynvml name it knows"
        )
    return found
