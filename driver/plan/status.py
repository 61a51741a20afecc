"""What the claim's ``status.devices`` says of prepared devices (KEP-4817)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driver.model.claims import Held, Record
from driver.model.gpu import Gpu
from driver.model.ids import GpuUuid
from driver.model.shares import Limits, Share
from driver.model.units import Bytes, binary_quantity
from driver.plan.kinds import limits_of_held
from driver.plan.limits import CGROUP

_MAX_MESSAGE = 32_768  # of a condition (metav1.Condition)


@dataclass(frozen=True, slots=True)
class Troubles:
    """What has become of a claim since it was prepared."""

    daemons: Mapping[GpuUuid, str] = field(default_factory=dict)  # why the MPS daemon is down
    over: Mapping[GpuUuid, str] = field(default_factory=dict)  # what is used too much of a card


NO_TROUBLES = Troubles()


def status_patch(
    record: Record,
    gpus: Mapping[GpuUuid, Gpu],
    *,
    driver: str,
    now: str,
    troubles: Troubles = NO_TROUBLES,
) -> dict[str, Any]:
    """The body of a server-side apply to the ``status`` subresource of the claim.

    ``now`` is RFC 3339 in UTC with seconds, the time of the condition. Entries are keyed by
    driver, pool, device and share (resource.k8s.io/v1): where two requests have admin access to
    one device, the first stands for both. The UID keeps it from a later claim of the same name.

    Condition ``Ready`` says what the allocation is and what its limits are worth; it is False
    while the MPS daemon of its card is down. ``WithinLimits`` is there, and False, only while the
    watchdog sees more used than was allocated.
    """
    entries: dict[tuple[str, str, str | None], dict[str, Any]] = {}
    for held in record.held:
        each = held.allocation
        entry = _entry(held, gpus.get(held.gpu), driver) | {
            "conditions": _conditions(held, gpus.get(held.gpu), now, troubles)
        }
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


def _entry(held: Held, gpu: Gpu | None, driver: str) -> dict[str, Any]:
    allocation = held.allocation
    entry: dict[str, Any] = {
        "driver": driver,
        "pool": allocation.pool,
        "device": allocation.device,
        "data": _data(held, gpu),
    }
    return entry if allocation.share_id is None else entry | {"shareID": allocation.share_id}


def _conditions(held: Held, gpu: Gpu | None, now: str, troubles: Troubles) -> list[dict[str, str]]:
    message = _message(held, gpu)
    down = troubles.daemons.get(held.gpu) if _uses_mps(held) else None
    if down is None:
        found = [_condition("Ready", "True", "Prepared", message, now)]
    else:
        text = f"the MPS control daemon of card {held.gpu} is down: {down}; {message}"
        found = [_condition("Ready", "False", "MPSDaemonDown", text, now)]
    if over := troubles.over.get(held.gpu):
        found.append(_condition("WithinLimits", "False", "OverLimit", over, now))
    return found


def _uses_mps(held: Held) -> bool:
    return held.type == "mps" and held.share is not None


def _condition(type_: str, status: str, reason: str, message: str, now: str) -> dict[str, str]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message[:_MAX_MESSAGE],
        "lastTransitionTime": now,
    }


def _message(held: Held, gpu: Gpu | None) -> str:
    card = f"card {held.gpu}" + (f" ({gpu.product})" if gpu else "")
    if held.allocation.admin:
        return f"admin access to {card}: holds nothing, no limits"
    if held.share is not None:
        return _share_message(held, held.share, card)
    by = limits_of_held(held)
    what = (
        "whole " if held.placement is None else f"partition {held.profile} at {held.placement} of "
    )
    return f"{what}{card}; memory limited by {by.memory}, compute by {by.compute}"


def _share_message(held: Held, share: Share, card: str) -> str:
    if held.type == "timeslice":
        return f"a turn on {card}: neither memory nor compute is limited (time slices)"
    memory, by = _memory(share), share.limits
    parts = [f"share of {card}", f"memory {binary_quantity(memory)} limited by {by.memory}"]
    if memory < share.memory:
        given = binary_quantity(share.memory)
        parts.append(f"less than the {given} allocated, as its config says")
    if share.percent_limit is None:
        parts.append("compute not capped")
    else:
        parts.append(f"compute {share.percent_limit} % limited by {by.compute}")
    parts.append(_for_whom(by))
    if not share.multi_user:
        parts.append("containers of other user ids on the card wait until this one's end")
    return "; ".join(parts)


def _for_whom(by: Limits) -> str:
    if by.memory == CGROUP:
        return "memory for each pod as a whole, compute for each process by itself"
    return "for each process by itself"


def _data(held: Held, gpu: Gpu | None) -> dict[str, Any]:
    by = limits_of_held(held)
    data: dict[str, Any] = {
        "type": held.type,
        **_identity(held),
        "memoryLimit": by.memory,
        "computeLimit": by.compute,
    }
    if held.share is not None:
        data |= _share_data(held.share)
    return data | ({"product": gpu.product} if gpu else {})


def _share_data(share: Share) -> dict[str, Any]:
    """What is enforced, as quantities; for a time slice what was counted."""
    percent = share.percent_limit or share.compute_percent
    data: dict[str, Any] = {"memory": binary_quantity(_memory(share)), "computePercent": percent}
    if share.interval is not None:
        data["interval"] = share.interval.name.capitalize()
    return data


def _memory(share: Share) -> Bytes:
    return share.memory if share.memory_limit is None else share.memory_limit


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
