"""Shares on the map: who has how much of a card, and their part of its bar. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kubeletplugin.quantities import quantity

Object: TypeAlias = Mapping[str, Any]
DeviceId: TypeAlias = tuple[str, str, str]  # driver, pool, device


@dataclass(frozen=True, slots=True)
class SharePart:
    """One share of a card, or a turn on it."""

    holder: str  # "namespace/claim (pod, pod)"
    kind: str  # "mps" or "timeslice"
    memory: str  # consumed, a Kubernetes quantity; "0": nothing counted
    percent: str  # consumed; "0": no cap

    @property
    def text(self) -> str:
        if self.kind == "timeslice":
            return f"a turn: {self.holder}"
        cap = "" if self.percent == "0" else f" {self.percent} %"
        return f"{self.memory}{cap}: {self.holder}"


def part_of(holder: str, kind: str, result: Object) -> SharePart:
    """From an allocation result."""
    consumed = result.get("consumedCapacity") or {}
    memory, percent = (str(consumed.get(key, "0")) for key in ("memory", "computePercent"))
    return SharePart(holder, kind, memory, percent)


def card_name(device: str, kind: str) -> str:
    """``gpu-3f0c2d5a`` of ``gpu-3f0c2d5a-mps``."""
    return device.removesuffix(f"-{kind}")


def widths(parts: Sequence[SharePart], total: str, columns: int) -> list[int]:
    """Columns of each share in a bar of so many, to the scale of the card's memory; at least one,
    as long as there are any. Turns have equal parts: nothing of them has a size."""
    if any(part.kind == "timeslice" for part in parts):
        return _even(len(parts), columns)
    whole = float(quantity(total or "0")) or 1.0
    found: list[int] = []
    done, used = 0.0, 0
    for part in parts:
        done += float(quantity(part.memory)) / whole
        end = min(max(round(columns * done), used + 1), columns)
        found.append(end - used)
        used = end
    return found


def _even(count: int, columns: int) -> list[int]:
    return [columns * (n + 1) // count - columns * n // count for n in range(count)]


def texts(parts: Iterable[SharePart]) -> list[str]:
    return [part.text for part in parts]
