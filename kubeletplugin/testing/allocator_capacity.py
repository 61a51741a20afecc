"""What devices have left: consumable capacity (KEP-5075) and shared counters (KEP-4815)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil
from typing import Any, TypeAlias

from kubeletplugin.contract import Object
from kubeletplugin.quantities import canonical, quantity

DeviceId: TypeAlias = tuple[str, str, str]  # driver, pool, device
SetId: TypeAlias = tuple[str, str, str]  # driver, pool, counter set
Amounts: TypeAlias = Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Use:
    """One device as it would be, or is, allocated."""

    id: DeviceId
    device: Mapping[str, Any]
    consumed: Amounts | None  # None: exclusively


@dataclass(frozen=True, slots=True)
class Taken:
    """What allocated claims hold."""

    alone: frozenset[DeviceId] = frozenset()
    shared: Mapping[DeviceId, Amounts] = field(default_factory=dict)  # sums over all shares

    @property
    def ids(self) -> frozenset[DeviceId]:
        return self.alone | self.shared.keys()


def taken(claims: Iterable[Object]) -> Taken:
    """What ``claims`` hold; admin access holds nothing."""
    alone: set[DeviceId] = set()
    shared: dict[DeviceId, dict[str, Decimal]] = {}
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or []:
            key = result["driver"], result["pool"], result["device"]
            if result.get("adminAccess"):
                continue
            if not result.get("shareID"):
                alone.add(key)
                continue
            sums = shared.setdefault(key, {})
            for name, value in (result.get("consumedCapacity") or {}).items():
                sums[name] = sums.get(name, Decimal(0)) + quantity(value)
    return Taken(frozenset(alone), shared)


def is_shared(device: Mapping[str, Any]) -> bool:
    return bool(device.get("allowMultipleAllocations"))


def consumption(device: Mapping[str, Any], wanted: Mapping[str, Any]) -> Amounts | None:
    """What a share with these requests would consume of each capacity, rounded as the scheduler
    does; None where a request is outside of its policy or of no capacity of the device."""
    capacity = device.get("capacity") or {}
    if not wanted.keys() <= capacity.keys():
        return None
    found: dict[str, Decimal] = {}
    for name, entry in capacity.items():
        asked = quantity(wanted[name]) if name in wanted else None
        amount = _rounded(entry, asked)
        if amount is None:
            return None
        found[name] = amount
    return found


def at_least(device: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """What a capacity request means to a device that is allocated once: only a filter."""
    capacity = device.get("capacity") or {}
    return all(
        name in capacity and quantity(capacity[name]["value"]) >= quantity(value)
        for name, value in wanted.items()
    )


def has_room(use: Use, taken: Taken, picked: Sequence[Use]) -> bool:
    """Whether the device itself has that much left beside ``taken`` and ``picked``."""
    if use.consumed is None:
        return use.id not in taken.ids and all(use.id != other.id for other in picked)
    if use.id in taken.alone:
        return False
    already = taken.shared.get(use.id, {})
    for name, amount in use.consumed.items():
        others = sum(
            (other.consumed or {}).get(name, Decimal(0)) for other in picked if other.id == use.id
        )
        total = already.get(name, Decimal(0)) + others + amount
        if total > quantity(use.device["capacity"][name]["value"]):
            return False
    return True


def counters_left(
    sets: Mapping[SetId, Amounts], devices: Mapping[DeviceId, Mapping[str, Any]], taken: Taken
) -> Mapping[SetId, Amounts]:
    """What is left of each counter set; a shared device is charged once, whatever its shares."""
    left = {key: dict(amounts) for key, amounts in sets.items()}
    for device_id in taken.ids:
        for key, name, amount in _needs(device_id, devices.get(device_id, {})):
            if key in left:
                left[key][name] = left[key].get(name, Decimal(0)) - amount
    return left


def counters_suffice(
    use: Use, left: Mapping[SetId, Amounts], taken: Taken, picked: Sequence[Use]
) -> bool:
    """Whether the counters that are ``left`` pay for the device beside what is ``picked``."""
    if use.id in taken.ids or any(other.id == use.id for other in picked):
        return True
    charged: dict[tuple[SetId, str], Decimal] = {}
    for each in {other.id: other for other in picked if other.id not in taken.ids}.values():
        for key, name, amount in _needs(each.id, each.device):
            charged[key, name] = charged.get((key, name), Decimal(0)) + amount
    return all(
        left.get(key, {}).get(name, Decimal(0)) - charged.get((key, name), Decimal(0)) >= amount
        for key, name, amount in _needs(use.id, use.device)
    )


def counter_sets(driver: str, pool: str, spec: Object) -> Iterator[tuple[SetId, Amounts]]:
    for found in spec.get("sharedCounters") or []:
        amounts = {name: quantity(each["value"]) for name, each in found["counters"].items()}
        yield (driver, pool, found["name"]), amounts


def written(consumed: Amounts) -> dict[str, str]:
    """``consumedCapacity`` as the API server has it; memory in binary form."""
    return {name: _text(amount) for name, amount in consumed.items()}


def _text(amount: Decimal) -> str:
    size = int(amount)
    return canonical(f"{size // 1024}Ki") if size and size % 1024 == 0 else str(size)


def _needs(device_id: DeviceId, device: Mapping[str, Any]) -> Iterator[tuple[SetId, str, Decimal]]:
    driver, pool, _ = device_id
    for entry in device.get("consumesCounters") or []:
        for name, each in entry["counters"].items():
            yield (driver, pool, entry["counterSet"]), name, quantity(each["value"])


def _rounded(entry: Mapping[str, Any], asked: Decimal | None) -> Decimal | None:
    policy = entry.get("requestPolicy") or {}
    if asked is None:
        return quantity(policy.get("default", entry["value"]))
    if "validRange" in policy:
        return _in_range(policy["validRange"], asked)
    if "validValues" in policy:
        fitting = [each for each in map(quantity, policy["validValues"]) if each >= asked]
        return min(fitting, default=None)
    return asked


def _in_range(valid: Mapping[str, Any], asked: Decimal) -> Decimal | None:
    least = quantity(valid["min"])
    found = max(least, asked)
    if "step" in valid and found > least:
        step = quantity(valid["step"])
        found = least + ceil((found - least) / step) * step
    return None if "max" in valid and found > quantity(valid["max"]) else found
