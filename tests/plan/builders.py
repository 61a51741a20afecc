"""Small valid objects. Each test states only what it is about."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from driver.model.claims import AllocatedClaim, Allocation, ClaimState, Held, Record
from driver.model.devices import Device, MigPartition, WholeGpu
from driver.model.gpu import DeviceNode, Engines, Gpu, Inventory, MigMode, MigProfile, Nvlink
from driver.model.ids import ClaimUid, DeviceName, GpuUuid, PciAddress, RequestName
from driver.model.units import Bytes, from_mib
from driver.model.view import NodeView
from driver.plan.cdi import common_edits
from driver.plan.names import device_names, partition_name
from driver.sim.profiles import PROFILES

DRIVER = "gpu.aliquot.dev"
POOL = "node-1"
BOOT = "5f0c0f0e-boot"
MIB = 1 << 20


def pci(n: int) -> PciAddress:
    return PciAddress(f"0000:{n:02x}:00.0")


def gpu(n: int = 0, **changes: Any) -> Gpu:
    """Card ``n`` of an H100 node, without NVLink unless asked for."""
    card = Gpu(
        uuid=GpuUuid(f"GPU-{n:08x}-1b7e-4d0a-9c55-2f6a8e0d4b11"),
        pci=pci(n),
        minor=n,
        product="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        architecture="Hopper",
        compute_capability=(9, 0),
        memory=Bytes(81_559 * MIB),
        reserved=Bytes(551 * MIB),
        multiprocessors=132,
        engines=Engines(copy=3, decoders=7, encoders=0, jpeg=7, ofa=1),
        mig_mode=MigMode(current=False, pending=False),
        ecc_enabled=True,
        addressing_mode="HMM",
        numa_node=n // 4,
        pcie_root=f"pci0000:{n // 2:02x}",
        pcie_generation=5,
        pcie_width=16,
    )
    return replace(card, **changes)


def switched(n: int, **changes: Any) -> Gpu:
    return gpu(n, nvlink=Nvlink(18, (4, 0), True, frozenset()), **changes)


def linked(n: int, *peers: int, **changes: Any) -> Gpu:
    return gpu(n, nvlink=Nvlink(4, (3, 0), False, frozenset(map(pci, peers))), **changes)


def profiles_of(board: str) -> tuple[MigProfile, ...]:
    """What real boards of this kind can be cut into."""
    return tuple(
        MigProfile(
            name=row.name,
            enum=row.profile,
            id=row.id,
            slices=row.slices,
            memory=from_mib(row.memory_mib),
            multiprocessors=row.multiprocessors,
            engines=Engines(row.copy_engines, row.decoders, row.encoders, row.jpeg, row.ofa),
            size=row.size,
            starts=row.starts,
            instances=row.instances,
        )
        for row in PROFILES[board].gpu_instance_profiles
    )


def cuttable(n: int = 0, board: str = "h100-80gb", **changes: Any) -> Gpu:
    """Card ``n`` with its MIG profiles; MIG mode is off where it changes without a reset."""
    found = PROFILES[board]
    card = gpu(
        n,
        product=found.product,
        compute_capability=found.compute_capability,
        memory=from_mib(found.memory_mib),
        multiprocessors=found.multiprocessors,
        mig_mode=MigMode(*[found.mig_needs_reset] * 2),
        mig_profiles=profiles_of(board),
    )
    return replace(card, **changes)


def partition(card: Gpu, profile: str, start: int = 0, **changes: Any) -> MigPartition:
    kind = next(each for each in card.mig_profiles if each.name == profile)
    name = partition_name(device_names([card.uuid])[card.uuid], profile, start)
    return replace(MigPartition(name, card, kind, start, toggle=True), **changes)


def holding(held_by: AllocatedClaim, *devices: Device, **changes: Any) -> Record:
    """A completed record of ``held_by`` on ``devices``, one for each allocation."""
    held = tuple(
        Held(each, device.gpu.uuid, "mig", device.placement, device.profile.name)
        if isinstance(device, MigPartition)
        else Held(each, device.gpu.uuid, "gpu")
        for each, device in zip(held_by.allocations, devices, strict=True)
    )
    return replace(Record(held_by, held, (), ClaimState.COMPLETED, BOOT), **changes)


def inventory(*gpus: Gpu) -> Inventory:
    return Inventory("580.105.08", (13, 0), gpus)


def whole(card: Gpu) -> WholeGpu:
    return WholeGpu(device_names([card.uuid])[card.uuid], card)


def by_name(*devices: Device) -> dict[DeviceName, Device]:
    return {device.name: device for device in devices}


def allocation(device: Device, position: int = 0, **changes: Any) -> Allocation:
    return replace(Allocation(position, RequestName("gpu"), POOL, device.name), **changes)


def claim(uid: str, *allocations: Allocation) -> AllocatedClaim:
    return AllocatedClaim(ClaimUid(uid), "team", f"claim-{uid}", allocations)


def record(held_by: AllocatedClaim, cards: Iterable[Gpu], **changes: Any) -> Record:
    """A completed record of ``held_by`` on ``cards``, one for each allocation."""
    pairs = zip(held_by.allocations, cards, strict=True)
    held = tuple(Held(each, card.uuid, "gpu") for each, card in pairs)
    return replace(Record(held_by, held, (), ClaimState.COMPLETED, BOOT), **changes)


def view(*gpus: Gpu, **changes: Any) -> NodeView:
    made = NodeView(
        driver_name=DRIVER,
        gpus={card.uuid: card for card in gpus},
        nodes={card.uuid: (node(f"/dev/nvidia{card.minor}"),) for card in gpus},
        common=common_edits((), ()),
    )
    return replace(made, **changes)


def node(path: str) -> DeviceNode:
    return DeviceNode(path=path, host_path=f"/driver{path}")


def result(device: str = "gpu-00000000", request: str = "gpu", **changes: Any) -> dict[str, Any]:
    return {"driver": DRIVER, "pool": POOL, "device": device, "request": request} | changes


def config(source: str = "FromClaim", **parameters: Any) -> dict[str, Any]:
    whole_config = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "GpuConfig"} | parameters
    return {"source": source, "opaque": {"driver": DRIVER, "parameters": whole_config}}


def raw_claim(*results: Any, config: Iterable[Any] = ()) -> dict[str, Any]:
    """A ResourceClaim as the API server gives it."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "team", "name": "claim-a", "uid": "uid-a"},
        "status": {"allocation": {"devices": {"results": [*results], "config": [*config]}}},
    }


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in JSON data, the whole first."""
    yield path
    if isinstance(value, dict):
        children = list(value.items())
    else:
        children = list(enumerate(value)) if isinstance(value, list) else []
    for key, child in children:
        yield from paths(child, (*path, key))


def put(raw: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of ``raw`` with ``value`` at ``path``."""
    root = {"root": copy.deepcopy(raw)}
    place: Any = root
    *way, last = ("root", *path)
    for key in way:
        place = place[key]
    place[last] = value
    return root["root"]
