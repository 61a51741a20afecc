"""What a ResourceSlice says of a device (design 6.2). Only what is constant is published."""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, assert_never

from driver.model.devices import Device, MigPartition, MpsGpu, TimeSlicedGpu, WholeGpu
from driver.model.gpu import Engines, Gpu, Inventory
from driver.model.ids import GpuUuid
from driver.model.units import Bytes, binary_quantity, decimal_quantity
from driver.plan.capacity import shared_capacities
from driver.plan.kinds import device_type, limits_of

Attribute: TypeAlias = dict[str, Any]  # {"string": …}, {"int": …}, {"bool": …} or {"version": …}

_MAX_BYTES = 64  # of a string or version value (resource.k8s.io/v1, DeviceAttribute)
_STANDARD = "resource.kubernetes.io/"


def attributes(
    device: Device, inventory: Inventory, groups: Mapping[GpuUuid, str]
) -> dict[str, Attribute]:
    """Attributes by name; what the hardware does not tell is left out.

    ``groups`` is ``topology.nvlink_groups(inventory)``. With ``capacities`` these are at most 31
    of the 32 that a device may have.
    """
    gpu = device.gpu
    held = limits_of(device)
    found = {
        "type": _text(device_type(device)),
        **_identity(device),
        "memoryLimit": _text(held.memory),
        "computeLimit": _text(held.compute),
        **_card(gpu),
        "driverVersion": _version(inventory.driver_version),
        "cudaDriverVersion": _version(_dotted(inventory.cuda_driver_version)),
        **_place(gpu),
        **_reach(device, groups),
    }
    return {name: value for name, value in found.items() if value is not None}


def capacities(device: Device) -> dict[str, dict[str, Any]]:
    """Capacities by name.

    ``memory`` of a whole card is NVML's total rounded down to 1Mi, not what remains after the
    driver's own reserve: this is the figure other GPU drivers publish and users know from
    ``nvidia-smi``, so that selectors such as ``>= 40Gi`` mean the same everywhere.
    """
    match device:
        case WholeGpu(gpu=gpu):
            return _quantities(gpu.memory, gpu.multiprocessors, gpu.engines)
        case MigPartition(profile=profile):
            return _quantities(profile.memory, profile.multiprocessors, profile.engines)
        case MpsGpu() | TimeSlicedGpu():
            return shared_capacities(device)
        case _:
            assert_never(device)


def semver(text: str) -> str | None:
    """The first three numbers of ``text`` as a semantic version: ``580.82.07`` → ``580.82.7``.

    A version attribute must be valid semver 2.0.0, where numbers have no leading zeros; missing
    ones become 0. None when there is no number at all.
    """
    numbers = [str(int(number)) for number in re.findall("[0-9]{1,18}", text)[:3]]
    return ".".join([*numbers, "0", "0"][:3]) if numbers else None


def _quantities(
    memory: Bytes, multiprocessors: int | None, engines: Engines
) -> dict[str, dict[str, str]]:
    counts = {
        "multiprocessors": multiprocessors,
        "copyEngines": engines.copy,
        "decoders": engines.decoders,
        "encoders": engines.encoders,
        "jpegEngines": engines.jpeg,
        "ofaEngines": engines.ofa,
    }
    known = {name: decimal_quantity(n) for name, n in counts.items() if n is not None}
    found = {"memory": binary_quantity(memory)} | known
    return {name: {"value": value} for name, value in found.items()}


def _identity(device: Device) -> dict[str, Attribute | None]:
    """A partition has no UUID before it is made, and perhaps another one each time."""
    match device:
        case WholeGpu(gpu=gpu):
            return {"uuid": _text(gpu.uuid), "wholeCard": _flag(True)}
        case MpsGpu(gpu=gpu, serve=serve, multi_user=multi_user):
            return {
                "uuid": _text(gpu.uuid),
                "mpsProtocol": _number(serve.protocol),
                "multiUser": _flag(multi_user),
            }
        case TimeSlicedGpu(gpu=gpu):
            return {"uuid": _text(gpu.uuid)}
        case MigPartition(gpu=gpu, profile=profile, start=start):
            return {
                "parentUUID": _text(gpu.uuid),
                "profile": _text(profile.name),
                "placementStart": _number(start),
                "placementSize": _number(profile.size),
            }
        case _:
            assert_never(device)


def _reach(device: Device, groups: Mapping[GpuUuid, str]) -> dict[str, Attribute | None]:
    """Partitions reach no other card: NVLink and P2P are off in MIG mode (MIG user guide)."""
    if isinstance(device, MigPartition):
        return {}
    return _interconnect(device.gpu, groups.get(device.gpu.uuid)) | {
        "pcieGeneration": _number(device.gpu.pcie_generation),
        "pcieWidth": _number(device.gpu.pcie_width),
    }


def _card(gpu: Gpu) -> dict[str, Attribute | None]:
    return {
        "productName": _text(gpu.product),
        "brand": _text(gpu.brand),
        "architecture": _text(gpu.architecture),
        "cudaComputeCapability": _version(_dotted(gpu.compute_capability)),
        "migCapable": _flag(gpu.mig_mode is not None),
        "eccEnabled": _flag(gpu.ecc_enabled),
        "addressingMode": _text(gpu.addressing_mode),
    }


def _place(gpu: Gpu) -> dict[str, Attribute | None]:
    """The standard names (kubernetes ``deviceattribute``, KEP-6072)."""
    return {
        f"{_STANDARD}pciBusID": _text(gpu.pci),
        f"{_STANDARD}pcieRoot": _text(gpu.pcie_root),
        f"{_STANDARD}numaNode": _number(gpu.numa_node),
    }


def _interconnect(gpu: Gpu, group: str | None) -> dict[str, Attribute | None]:
    nvlink, fabric = gpu.nvlink, gpu.fabric
    return {
        "nvlinkGroup": _text(group),
        "nvlinkActiveLinks": _number(nvlink.active_links if nvlink else None),
        "nvlinkVersion": _version(_dotted(nvlink.version)) if nvlink and nvlink.version else None,
        "fabricClusterUUID": _text(fabric.cluster_uuid if fabric else None),
        "fabricCliqueID": _number(fabric.clique_id if fabric else None),
    }


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _text(value: str | None) -> Attribute | None:
    """Cut to what the API takes, at a character's border."""
    if not value:
        return None
    return {"string": value.encode(errors="replace")[:_MAX_BYTES].decode(errors="ignore")}


def _version(value: str) -> Attribute | None:
    version = semver(value)
    return None if version is None else {"version": version}


def _number(value: int | None) -> Attribute | None:
    return None if value is None else {"int": value}


def _flag(value: bool | None) -> Attribute | None:
    return None if value is None else {"bool": value}
