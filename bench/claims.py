"""Bodies of the ResourceClaims that a bench makes, allocated as the scheduler would. Pure."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubeletplugin.contract import Object

LABEL = "aliquot-bench"  # its value is the run, so that two runs delete only their own
REQUEST = "gpu"


@dataclass(frozen=True, slots=True)
class Offer:
    """A device that can be allocated. ``consumes`` is empty unless it can be shared."""

    pool: str
    device: str
    shared: bool = False
    consumes: Mapping[str, str] = field(default_factory=dict)


def offers(slices: Iterable[Object], driver: str, node: str | None = None) -> tuple[Offer, ...]:
    """Devices of a driver's ResourceSlices (of one node), of each pool's newest generation."""
    ours = [
        each["spec"]
        for each in slices
        if each["spec"]["driver"] == driver and node in (None, each["spec"].get("nodeName"))
    ]
    newest: dict[str, int] = {}
    for spec in ours:
        pool = spec["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), pool["generation"])
    return tuple(
        _offer(spec["pool"]["name"], device)
        for spec in ours
        if spec["pool"]["generation"] == newest[spec["pool"]["name"]]
        for device in spec.get("devices") or []
    )


def _offer(pool: str, device: Mapping[str, Any]) -> Offer:
    shared = bool(device.get("allowMultipleAllocations"))
    capacity = device.get("capacity") or {}
    consumes = {name: _least(value) for name, value in capacity.items()} if shared else {}
    return Offer(pool, device["name"], shared, consumes)


def _least(capacity: Mapping[str, Any]) -> str:
    """What a request that names no amount consumes (KEP-5075): the default, else all."""
    policy = capacity.get("requestPolicy") or {}
    return str(policy.get("default", capacity["value"]))


def named(found: Sequence[Offer], names: Iterable[str]) -> tuple[Offer, ...]:
    """Those of ``found`` in the order of ``names``. Raises ValueError for one not among them."""
    by_name = {offer.device: offer for offer in found}
    wanted = list(names)
    if missing := [name for name in wanted if name not in by_name]:
        known = ", ".join(by_name) or "none"
        raise ValueError(f"devices {', '.join(missing)} are not published; there are: {known}")
    return tuple(by_name[name] for name in wanted)


def claim(name: str, namespace: str, run: str) -> Object:
    """One request for one device. The class need not exist: nobody schedules the claim."""
    exactly = {"deviceClassName": "bench", "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: run}},
        "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
    }


def holder(name: str, namespace: str, run: str) -> Object:
    """A pod that never runs. Claims are reserved for it: the controller manager takes a
    reservation away when it finds no such pod."""
    container = {"name": "none", "image": "none"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: run}},
        "spec": {"schedulerName": "nobody", "containers": [container]},
    }


def allocated(
    claim: Object, offer: Offer, driver: str, pod: Object, parameters: Object | None = None
) -> Object:
    """The body of a PUT to the claim's status; ``parameters`` are opaque config of the driver."""
    result: Object = {
        "request": REQUEST,
        "driver": driver,
        "pool": offer.pool,
        "device": offer.device,
    }
    if offer.shared:
        result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": dict(offer.consumes)}
    devices: Object = {"results": [result]}
    if parameters is not None:
        opaque = {"driver": driver, "parameters": parameters}
        devices["config"] = [{"source": "FromClaim", "requests": [], "opaque": opaque}]
    reserved = {
        "resource": "pods",
        "name": pod["metadata"]["name"],
        "uid": pod["metadata"]["uid"],
    }
    return {**claim, "status": {"allocation": {"devices": devices}, "reservedFor": [reserved]}}
