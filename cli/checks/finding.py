"""What one check found."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``wanted`` and ``mend`` are empty where all is well."""

    check: str  # a short name of what was looked at
    level: Level
    found: str
    wanted: str = ""
    mend: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warn(check: str, found: str, wanted: str, mend: str) -> Finding:
    """The node works, but not as it could."""
    return Finding(check, "warn", found, wanted, mend)


def fail(check: str, found: str, wanted: str, mend: str) -> Finding:
    """Claims cannot be prepared, or containers start without their cards."""
    return Finding(check, "fail", found, wanted, mend)
