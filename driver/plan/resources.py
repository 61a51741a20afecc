"""From devices to the pool to publish."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from driver.model.devices import Device
from driver.model.gpu import Inventory
from driver.model.ids import DeviceName, GpuUuid
from driver.plan.attributes import attributes, capacities
from driver.plan.topology import nvlink_groups
from kubeletplugin.contract import DesiredPool, DesiredSlice

# resource.k8s.io/v1: devices a ResourceSlice, fewer as soon as one of them carries a taint.
_MAX_DEVICES = 128
_MAX_DEVICES_WITH_TAINTS = 64

Taint = Mapping[str, str]  # key, effect and perhaps value


def driver_resources(
    devices: Sequence[Device],
    inventory: Inventory,
    taints: Mapping[GpuUuid, Sequence[Taint]],
    *,
    pool: str,
    features: Set[str],
    held: Set[DeviceName] = frozenset(),
) -> DesiredPool:
    """The pool as it should be published.

    ``features`` are what the cluster keeps of the optional fields: "taints", "counters",
    "sharing". Without taints, devices of a tainted card are withdrawn unless they are in
    ``held``: what has an allocation must stay (kubernetes#140802). A taint of effect "None" only
    informs and withdraws nothing.

    ResourceSlices are keyed ``00-cards-00``, ``00-cards-01``, … and a device keeps its
    ResourceSlice whatever becomes of the others, so that a fault rewrites one of them. For the
    same reason they are cut to the size with taints wherever a taint may come later.
    """
    with_taints = "taints" in features
    size = _MAX_DEVICES_WITH_TAINTS if with_taints else _MAX_DEVICES
    groups = nvlink_groups(inventory)

    def publish(device: Device) -> Mapping[str, Any] | None:
        found = taints.get(device.gpu.uuid, ())
        entry: dict[str, Any] = {
            "name": device.name,
            "attributes": attributes(device, inventory, groups),
            "capacity": capacities(device),
        }
        if with_taints:
            return entry | ({"taints": [dict(taint) for taint in found]} if found else {})
        withdrawn = any(taint["effect"] != "None" for taint in found)
        return None if withdrawn and device.name not in held else entry

    parts = [devices[i : i + size] for i in range(0, len(devices), size)]
    return DesiredPool(
        name=pool,
        slices=tuple(
            DesiredSlice(
                key=f"00-cards-{i:02}",
                devices=tuple(entry for each in part if (entry := publish(each)) is not None),
            )
            for i, part in enumerate(parts)
        ),
    )
