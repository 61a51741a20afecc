"""What is left of counters (KEP-4815) and of devices that may be allocated many times (KEP-5075)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from kubeletplugin.contract import Object
from kubeletplugin.quantities import canonical, quantity

DeviceId: TypeAlias = tuple[str, str, str]  # driver, pool, name
Consumed: TypeAlias = Mapping[str, str]  # capacity by name; empty where the device is had alone
_Set: TypeAlias = tuple[str, str, str]  # driver, pool, name


@dataclass(frozen=True, slots=True)
class Taking:
    """A device that somebody has, or would have, and how much of it."""

    device: DeviceId
    consumed: Consumed = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Room:
    """Everything that is published, and who has what of it already."""

    devices: Mapping[DeviceId, Mapping[str, Any]] = field(default_factory=dict)
    sets: Mapping[_Set, Mapping[str, Decimal]] = field(default_factory=dict)
    takings: tuple[Taking, ...] = ()

    def take(
        self, found: DeviceId, wanted: Mapping[str, str], more: Sequence[Taking] = ()
    ) -> Taking | None:
        """A device with so much of its capacities, beside ``more`` that is not stored yet; None
        where it does not fit."""
        device = self.devices[found]
        others = [*self.takings, *more]
        mine = [each for each in others if each.device == found]
        shared = bool(device.get("allowMultipleAllocations"))
        if mine and not shared:
            return None
        if not mine and not self._counters_fit(found, {each.device for each in others}):
            return None
        if not shared:
            return None if _lacks(device, wanted) else Taking(found)
        consumed = consumption(device, wanted)
        left = _left(device, mine)
        fits = consumed is not None and all(
            quantity(consumed[name]) <= left[name] for name in left
        )
        return Taking(found, consumed or {}) if fits else None

    def _counters_fit(self, found: DeviceId, others: Iterable[DeviceId]) -> bool:
        used: dict[tuple[_Set, str], Decimal] = {}
        for each in others:
            for key, amount in self._consumption(each):
                used[key] = used.get(key, Decimal(0)) + amount
        return all(
            used.get((name, counter), Decimal(0)) + amount
            <= self.sets.get(name, {}).get(counter, Decimal(0))
            for (name, counter), amount in self._consumption(found)
        )

    def _consumption(self, device: DeviceId) -> Iterator[tuple[tuple[_Set, str], Decimal]]:
        driver, pool, _ = device
        for entry in self.devices.get(device, {}).get("consumesCounters") or ():
            for counter, amount in entry["counters"].items():
                yield ((driver, pool, entry["counterSet"]), counter), quantity(amount["value"])


def room_of(slices: Iterable[Object], claims: Iterable[Object]) -> Room:
    """From the newest generation of each pool, and every allocation without admin access."""
    known = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for each in known:
        key = each["spec"]["driver"], each["spec"]["pool"]["name"]
        newest[key] = max(newest.get(key, 0), each["spec"]["pool"]["generation"])
    devices: dict[DeviceId, Mapping[str, Any]] = {}
    sets: dict[_Set, Mapping[str, Decimal]] = {}
    for each in known:
        spec = each["spec"]
        driver, pool = spec["driver"], spec["pool"]["name"]
        if spec["pool"]["generation"] != newest[driver, pool]:
            continue
        devices |= {(driver, pool, one["name"]): one for one in spec.get("devices") or ()}
        for one in spec.get("sharedCounters") or ():
            sets[driver, pool, one["name"]] = {
                name: quantity(amount["value"]) for name, amount in one["counters"].items()
            }
    return Room(devices, sets, tuple(_takings(claims)))


def _takings(claims: Iterable[Object]) -> Iterator[Taking]:
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if not result.get("adminAccess"):
                device = result["driver"], result["pool"], result["device"]
                yield Taking(device, result.get("consumedCapacity") or {})


def consumption(device: Mapping[str, Any], wanted: Mapping[str, str]) -> Consumed | None:
    """What a request takes of each capacity, as its policy rounds it; None where the device has no
    such capacity or the policy no such amount."""
    there = device.get("capacity") or {}
    found = {name: _rounded(each, wanted.get(name)) for name, each in there.items()}
    if set(wanted) - set(there) or None in found.values():
        return None
    return {name: canonical(str(amount)) for name, amount in found.items()}


def _rounded(capacity: Mapping[str, Any], wanted: str | None) -> Decimal | None:
    """Without a policy all of it goes."""
    policy = capacity.get("requestPolicy")
    if not policy:
        return quantity(capacity["value"])
    asked = quantity(wanted if wanted is not None else policy.get("default", capacity["value"]))
    valid = [quantity(each) for each in policy.get("validValues") or ()]
    if valid:
        return min((each for each in valid if each >= asked), default=None)
    range_ = policy.get("validRange") or {}
    least = quantity(range_.get("min", "0"))
    step = quantity(range_.get("step", "0"))
    most = quantity(range_.get("max", capacity["value"]))
    amount = max(asked, least)
    if step and (amount - least) % step:
        amount += step - (amount - least) % step
    return amount if amount <= most else None


def _left(device: Mapping[str, Any], mine: Iterable[Taking]) -> dict[str, Decimal]:
    held = list(mine)
    return {
        name: quantity(each["value"])
        - sum((quantity(one.consumed.get(name, "0")) for one in held), Decimal(0))
        for name, each in (device.get("capacity") or {}).items()
    }


def _lacks(device: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    there = device.get("capacity") or {}
    return any(
        name not in there or quantity(there[name]["value"]) < quantity(amount)
        for name, amount in wanted.items()
    )
