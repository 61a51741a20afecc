"""What the claim's ``status.devices`` says of prepared devices (KEP-4817)."""

from collections.abc import Mapping
from typing import Any

from driver.model.claims import Held, Record
from driver.model.gpu import Gpu
from driver.model.ids import GpuUuid
from driver.plan.kinds import limits_of_type

_MAX_MESSAGE = 32_768  # of a condition (metav1.Condition)


def status_patch(
    record: Record, gpus: Mapping[GpuUuid, Gpu], *, driver: str, now: str
) -> dict[str, Any]:
    """The body of a server-side apply to the ``status`` subresource of the claim.

    ``now`` is RFC 3339 in UTC with seconds, the time of the condition. Entries are keyed by
    driver, pool, device and share (resource.k8s.io/v1): where two requests have admin access to
    one device, the first stands for both. The UID keeps it from a later claim of the same name.
    """
    entries: dict[tuple[str, str, str | None], dict[str, Any]] = {}
    for held in record.held:
        each = held.allocation
        entry = _entry(held, gpus.get(held.gpu), driver, now)
        entries.setdefault((each.pool, each.device, each.share_id), entry)
    claim = record.claim
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": list(entries.values())},
    }


def already_says(claim: Mapping[str, Any], patch: Mapping[str, Any]) -> bool:
    """Whether the raw ``claim`` has the entries of ``patch``, times aside: nothing to write."""
    status = claim.get("status") or {}
    found = [_timeless(entry) for entry in status.get("devices") or []]
    return all(_timeless(entry) in found for entry in patch["status"]["devices"])


def _entry(held: Held, gpu: Gpu | None, driver: str, now: str) -> dict[str, Any]:
    allocation = held.allocation
    entry: dict[str, Any] = {
        "driver": driver,
        "pool": allocation.pool,
        "device": allocation.device,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": _message(held, gpu)[:_MAX_MESSAGE],
                "lastTransitionTime": now,
            }
        ],
        "data": _data(held, gpu),
    }
    return entry if allocation.share_id is None else entry | {"shareID": allocation.share_id}


def _message(held: Held, gpu: Gpu | None) -> str:
    card = f"card {held.gpu}" + (f" ({gpu.product})" if gpu else "")
    if held.allocation.admin:
        return f"admin access to {card}: holds nothing, no limits"
    by = limits_of_type(held.type)
    if held.placement is not None:
        what = f"partition {held.profile} at {held.placement} of {card}"
        return f"{what}; memory limited by {by.memory}, compute by {by.compute}"
    return f"whole {card}; memory limited by {by.memory}, compute by {by.compute}"


def _data(held: Held, gpu: Gpu | None) -> dict[str, Any]:
    by = limits_of_type(held.type)
    data: dict[str, Any] = {
        "type": held.type,
        **_identity(held),
        "memoryLimit": "none" if held.allocation.admin else by.memory,
        "computeLimit": "none" if held.allocation.admin else by.compute,
    }
    return data | ({"product": gpu.product} if gpu else {})


def _identity(held: Held) -> dict[str, Any]:
    if held.placement is None:
        return {"uuid": held.gpu}
    return {
        "parentUUID": held.gpu,
        "profile": held.profile,
        "placementStart": held.placement.start,
        "placementSize": held.placement.size,
    }


def _timeless(entry: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [
        {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        for condition in entry.get("conditions") or []
    ]
    return {**entry, "conditions": conditions}
