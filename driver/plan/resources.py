"""From devices to the pool to publish."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from driver.model.devices import Device, MigPartition, MpsGpu, WholeGpu
from driver.model.gpu import Inventory
from driver.model.ids import DeviceName, GpuUuid
from driver.plan.attributes import attributes, capacities
from driver.plan.counters import adopted_of, consumed, fits, quantities, totals
from driver.plan.layout import (
    COUNTERS,
    COUNTERS_BESIDE_DEVICES,
    SHARING,
    TAINTS,
    UNSORTED,
    is_shared,
    side_by_side,
)
from driver.plan.names import device_names, profile_label
from driver.plan.partitions import profile_ranks
from driver.plan.topology import nvlink_groups, pci_order
from kubeletplugin.contract import DesiredPool, DesiredSlice

# resource.k8s.io/v1: devices a ResourceSlice, fewer as soon as one has a taint or counters.
_MAX_DEVICES = 128
_MAX_SPECIAL_DEVICES = 64
_MAX_COUNTER_SETS = 8

Taint = Mapping[str, str]  # key, effect and perhaps value
_Publish: TypeAlias = Callable[[Device], Mapping[str, Any] | None]


def driver_resources(
    devices: Sequence[Device],
    inventory: Inventory,
    taints: Mapping[DeviceName, Sequence[Taint]],
    *,
    pool: str,
    features: Set[str],
    held: Set[DeviceName] = frozenset(),
) -> DesiredPool:
    """The pool as it should be published.

    ``features`` are what the cluster can do (``layout.cluster_features``). Without taints,
    tainted devices are withdrawn unless they are in ``held``: what has an allocation must stay
    (kubernetes#140802). A taint of effect "None" only informs and withdraws nothing.

    A device keeps its ResourceSlice whatever becomes of the others, so that a fault rewrites one
    of them. For the same reason they are cut to the size with taints wherever a taint may come
    later.
    """
    counted = _counted(devices, inventory, features)
    usable = [each for each in devices if each.name in held or _fits(each, counted)]
    groups = nvlink_groups(inventory)
    wholes = {each.gpu.uuid for each in usable if isinstance(each, WholeGpu)}
    entries = {
        each.name: {
            "name": each.name,
            "attributes": attributes(each, inventory, groups)
            | ({"wholeCard": {"bool": True}} if _stands_for_whole(each, wholes) else {}),
        }
        | _amounts(each, counted, features)
        for each in usable
    }

    def publish(device: Device) -> Mapping[str, Any] | None:
        entry, found = entries[device.name], taints.get(device.name, ())
        if TAINTS in features:
            return entry | ({"taints": [dict(taint) for taint in found]} if found else {})
        withdrawn = any(taint["effect"] != "None" for taint in found)
        return None if withdrawn and device.name not in held else entry

    special = TAINTS in features or counted
    layout = _Layout(_MAX_SPECIAL_DEVICES if special else _MAX_DEVICES, publish)
    if COUNTERS_BESIDE_DEVICES in features:
        return DesiredPool(pool, layout.card_by_card(usable, inventory, counted))
    if UNSORTED in features:
        return DesiredPool(pool, layout.group_by_group(usable, inventory, counted))
    return DesiredPool(pool, layout.kind_by_kind(usable, inventory, counted))


_Counted: TypeAlias = Mapping[GpuUuid, tuple[str, Mapping[str, int]]]  # set's name and totals


def _counted(devices: Sequence[Device], inventory: Inventory, features: Set[str]) -> _Counted:
    """Counter sets of the cards that are offered in more than one shape."""
    if COUNTERS not in features:
        return {}
    cut = {each.gpu.uuid for each in devices if isinstance(each, MigPartition)}
    if side_by_side(features):
        shapes = Counter(each.gpu.uuid for each in devices)
        cut |= {each.gpu.uuid for each in devices if shapes[each.gpu.uuid] > 1}
    names = device_names(gpu.uuid for gpu in inventory.gpus)
    return {
        gpu.uuid: (names[gpu.uuid], totals(gpu, adopted_of(devices, gpu)))
        for gpu in inventory.gpus
        if gpu.uuid in cut
    }


def _stands_for_whole(device: Device, wholes: Set[GpuUuid]) -> bool:
    """Whether it is the one device of its card that gives all of it by default, without being
    a whole card: classes for whole cards select on that."""
    is_all = isinstance(device, MpsGpu) and device.whole_by_default
    return is_all and device.gpu.uuid not in wholes


def _fits(device: Device, counted: _Counted) -> bool:
    """What adopted partitions left no room for is not offered."""
    if device.gpu.uuid not in counted:
        return True
    _, there = counted[device.gpu.uuid]
    return fits(consumed(device, there), there)


def _amounts(device: Device, counted: _Counted, features: Set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"capacity": capacities(device)}
    if is_shared(device):
        if SHARING not in features:  # held from before: nobody may have it beside its holders
            return {}
        found["allowMultipleAllocations"] = True
        if not side_by_side(features):
            return found
    name, there = counted.get(device.gpu.uuid, ("", {}))
    if need := quantities(consumed(device, there)):
        found["consumesCounters"] = [{"counterSet": name, "counters": need}]
    return found


class _Layout:
    """How devices are spread over ResourceSlices. Names sort in the order of taking."""

    def __init__(self, size: int, publish: _Publish) -> None:
        self._size = size
        self._publish = publish

    def kind_by_kind(
        self, devices: Sequence[Device], inventory: Inventory, counted: _Counted
    ) -> tuple[DesiredSlice, ...]:
        """Whole and shared cards, then a run for each profile, the smallest first, then the
        counters.

        The first device that fits is taken, so an order may run across cards, and whole and
        shared cards cost the scheduler least in front (types are told apart by their class).
        """
        cut = _partitions(devices)
        runs = (
            (
                f"{rank:02}-{profile_label(profile)}",
                [each for each in cut if each.profile.name == profile],
            )
            for rank, profile in enumerate(profile_ranks(inventory.gpus))
        )
        return self._in_runs(devices, runs, counted)

    def group_by_group(
        self, devices: Sequence[Device], inventory: Inventory, counted: _Counted
    ) -> tuple[DesiredSlice, ...]:
        """Kubernetes 1.35: only within a ResourceSlice is there an order. So one holds all
        partitions of as many cards as it has room for, the smallest first."""
        ranks = {name: rank for rank, name in enumerate(profile_ranks(inventory.gpus))}
        cut = sorted(_partitions(devices), key=lambda each: ranks[each.profile.name])
        runs = (
            (f"{i:02}", [each for each in cut if each.gpu.uuid in group])
            for i, group in enumerate(self._groups(cut, inventory))
        )
        return self._in_runs(devices, runs, counted)

    def _in_runs(
        self,
        devices: Sequence[Device],
        runs: Iterable[tuple[str, Sequence[MigPartition]]],
        counted: _Counted,
    ) -> tuple[DesiredSlice, ...]:
        """Whole and shared cards, the runs of partitions by their names, the counters."""
        cards = [each for each in devices if not isinstance(each, MigPartition)]
        parts = [*self._cut("00-cards", cards)]
        for name, run in runs:
            parts += self._cut(f"10-{name}", run)
        sets = [_counter_set(name, there) for name, there in counted.values()]
        for i, few in enumerate(_chunks(sets, _MAX_COUNTER_SETS)):
            parts.append(DesiredSlice(f"90-counters-{i:02}", shared_counters=tuple(few)))
        return tuple(parts)

    def _groups(self, cut: Sequence[MigPartition], inventory: Inventory) -> list[set[GpuUuid]]:
        """Cards whose partitions fit into one ResourceSlice together."""
        found: list[set[GpuUuid]] = [set()]
        used, sizes = 0, Counter(each.gpu.uuid for each in cut)
        for gpu in sorted(inventory.gpus, key=lambda gpu: pci_order(gpu.pci)):
            if used and used + sizes[gpu.uuid] > self._size:
                found.append(set())
                used = 0
            found[-1].add(gpu.uuid)
            used += sizes[gpu.uuid]
        return found

    def card_by_card(
        self, devices: Sequence[Device], inventory: Inventory, counted: _Counted
    ) -> tuple[DesiredSlice, ...]:
        """Kubernetes 1.34: a counter set stands in the ResourceSlice of its devices, and a
        shared device alone in one, or the scheduler looks at the wrong device."""
        plain = [each for each in devices if each.gpu.uuid not in counted and not is_shared(each)]
        parts = [*self._cut("00-cards", plain)]
        cards = sorted(inventory.gpus, key=lambda gpu: pci_order(gpu.pci))
        for i, gpu in enumerate(cards):
            for each in devices:
                if is_shared(each) and each.gpu.uuid == gpu.uuid:
                    parts.append(DesiredSlice(f"05-{i:02}-{each.name}", self._entries([each])))
            if gpu.uuid in counted:
                name, there = counted[gpu.uuid]
                of_card = [
                    each for each in devices if each.gpu.uuid == gpu.uuid and not is_shared(each)
                ]
                entries = self._entries(of_card[: self._size])
                sets = (_counter_set(name, there),)
                parts.append(DesiredSlice(f"10-{i:02}-{name}", entries, sets))
        return tuple(parts)

    def _cut(self, key: str, devices: Sequence[Device]) -> Iterable[DesiredSlice]:
        for i, part in enumerate(_chunks(devices, self._size)):
            yield DesiredSlice(f"{key}-{i:02}", self._entries(part))

    def _entries(self, devices: Iterable[Device]) -> tuple[Mapping[str, Any], ...]:
        found = (self._publish(each) for each in devices)
        return tuple(entry for entry in found if entry is not None)


def _partitions(devices: Iterable[Device]) -> list[MigPartition]:
    return [each for each in devices if isinstance(each, MigPartition)]


def _counter_set(name: str, there: Mapping[str, int]) -> dict[str, Any]:
    return {"name": name, "counters": quantities(there)}


def _chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))
