"""Rules of ``kubernetes/pkg/apis/resource/validation/validation.go`` that drivers run into."""

from collections.abc import Iterator, Sequence
from typing import Any

from kubeletplugin.contract import Object
from kubeletplugin.quantities import quantity
from kubeletplugin.testing.apiserver.errors import Problem
from kubeletplugin.testing.apiserver.policies import policy_problems
from kubeletplugin.testing.apiserver.resources import Resource
from kubeletplugin.testing.apiserver.values import (
    is_label,
    is_label_name,
    is_label_value,
    is_qualified_name,
    is_subdomain,
    semver,
)

_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_REQUIRED = "FieldValueRequired"
_TOO_MANY = "FieldValueTooMany"


def validate(resource: Resource, new: Object, old: Object | None, minor: int) -> list[Problem]:
    """Every problem of ``new``; ``minor`` is the Kubernetes version 1.``minor`` to play."""
    problems = list(_name(new))
    match resource.kind:
        case "ResourceSlice":
            problems += _slice(new.get("spec") or {}, (old or {}).get("spec"), minor)
        case "ResourceClaim":
            problems += _claim(new, old)
        case _:
            pass
    return problems


def _name(new: Object) -> Iterator[Problem]:
    name = str(new["metadata"].get("name", ""))
    if not name:
        yield Problem(
            "metadata.name", "Required value: name or generateName is required", _REQUIRED
        )
    elif not is_subdomain(name):
        yield Problem(
            "metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain is needed'
        )


def _slice(spec: Object, old: Object | None, minor: int) -> Iterator[Problem]:
    if not is_subdomain(str(spec.get("driver", "")), 63):
        yield Problem("spec.driver", f'Invalid value: "{spec.get("driver", "")}"')
    yield from _pool(spec.get("pool") or {})
    if sum(bool(spec.get(field)) for field in _NODE_FIELDS) != 1:
        names = ", ".join(f"`{field}`" for field in _NODE_FIELDS)
        yield Problem("spec", f"Invalid value: exactly one of {names} is required")
    if old is not None:
        for field in ("driver", "nodeName"):
            if spec.get(field) != old.get(field):
                yield Problem(f"spec.{field}", "Invalid value: field is immutable")
        if (spec.get("pool") or {}).get("name") != old["pool"]["name"]:
            yield Problem("spec.pool.name", "Invalid value: field is immutable")
    devices = spec.get("devices") or []
    counters = spec.get("sharedCounters") or []
    if devices and counters and minor >= 35:
        yield Problem(
            "spec", "Invalid value: only one of `sharedCounters` or `devices` is allowed"
        )
    yield from _counter_sets(counters, minor)
    yield from _device_list(devices)


def _pool(pool: Object) -> Iterator[Problem]:
    name = str(pool.get("name", ""))
    if not name or len(name) > 253 or not all(map(is_subdomain, name.split("/"))):
        yield Problem("spec.pool.name", f'Invalid value: "{name}"')
    if int(pool.get("generation", 0)) < 0:
        yield Problem(
            "spec.pool.generation", "Invalid value: must be greater than or equal to zero"
        )
    if int(pool.get("resourceSliceCount", 0)) <= 0:
        yield Problem("spec.pool.resourceSliceCount", "Invalid value: must be greater than zero")


def _counter_sets(sets: Sequence[Object], minor: int) -> Iterator[Problem]:
    if minor >= 35 and len(sets) > 8:
        yield _too_many("spec.sharedCounters", len(sets), 8)
    yield from _duplicates("spec.sharedCounters", [found.get("name") for found in sets])
    for position, found in enumerate(sets):
        path = f"spec.sharedCounters[{position}]"
        if not is_label(str(found.get("name", ""))):
            yield Problem(f"{path}.name", f'Invalid value: "{found.get("name", "")}"')
        yield from _counters(f"{path}.counters", found.get("counters") or {})


def _counters(path: str, counters: Object) -> Iterator[Problem]:
    if not counters:
        yield Problem(path, "Required value", _REQUIRED)
    if len(counters) > 32:
        yield _too_many(path, len(counters), 32)
    for name, counter in counters.items():
        if not is_label(name):
            yield Problem(path, f'Invalid value: "{name}": a DNS label is needed')
        yield from _quantity(f"{path}[{name}].value", counter.get("value"))


def _device_list(devices: Sequence[Object]) -> Iterator[Problem]:
    special = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    limit = 64 if special else 128
    if len(devices) > limit:
        yield _too_many("spec.devices", len(devices), limit)
    yield from _duplicates("spec.devices", [device.get("name") for device in devices])
    for position, device in enumerate(devices):
        yield from _device(f"spec.devices[{position}]", device)


def _device(path: str, device: Object) -> Iterator[Problem]:
    if not is_label(str(device.get("name", ""))):
        yield Problem(f"{path}.name", f'Invalid value: "{device.get("name", "")}"')
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > 32:
        yield _too_many(path, len(attributes) + len(capacity), 32)
    for name, value in attributes.items():
        yield from _attribute(f"{path}.attributes[{name}]", name, value)
    shared = bool(device.get("allowMultipleAllocations"))
    for name, entry in capacity.items():
        yield from _capacity(f"{path}.capacity[{name}]", name, entry, shared)
    consumes = device.get("consumesCounters") or []
    if len(consumes) > 2:
        yield _too_many(f"{path}.consumesCounters", len(consumes), 2)
    for index, use in enumerate(consumes):
        yield from _counters(
            f"{path}.consumesCounters[{index}].counters", use.get("counters") or {}
        )
    yield from _taints(f"{path}.taints", device.get("taints") or [])


def _attribute(path: str, name: str, value: dict[str, Any]) -> Iterator[Problem]:
    if not is_qualified_name(name):
        yield Problem(path, f'Invalid value: "{name}": a C identifier of at most 32 is needed')
    kinds = [kind for kind in ("int", "bool", "string", "version") if kind in value]
    if len(kinds) != 1:
        yield Problem(path, "Invalid value: exactly one value must be specified")
        return
    content = value[kinds[0]]
    if kinds[0] == "string" and len(str(content).encode()) > 64:
        yield Problem(
            f"{path}.string", "Too long: may not be more than 64 bytes", "FieldValueTooLong"
        )
    if kinds[0] == "version":
        try:
            semver(str(content))
        except ValueError as error:
            yield Problem(f"{path}.version", f"Invalid value: {error}")


def _capacity(path: str, name: str, entry: Object, shared: bool) -> Iterator[Problem]:
    if not is_qualified_name(name):
        yield Problem(path, f'Invalid value: "{name}": a C identifier of at most 32 is needed')
    wrong = list(_quantity(f"{path}.value", entry.get("value")))
    yield from wrong
    policy = entry.get("requestPolicy")
    if policy is None or wrong:
        return
    if not shared:
        yield Problem(
            f"{path}.requestPolicy",
            "Forbidden: requires allowMultipleAllocations: true",
            "FieldValueForbidden",
        )
    yield from policy_problems(f"{path}.requestPolicy", policy, quantity(entry["value"]))


def _taints(path: str, taints: Sequence[Object]) -> Iterator[Problem]:
    if len(taints) > 16:
        yield _too_many(path, len(taints), 16)
    for index, taint in enumerate(taints):
        if not is_label_name(str(taint.get("key", ""))):
            yield Problem(f"{path}[{index}].key", f'Invalid value: "{taint.get("key", "")}"')
        if not is_label_value(str(taint.get("value", ""))):
            yield Problem(f"{path}[{index}].value", f'Invalid value: "{taint["value"]}"')
        if taint.get("effect") not in ("None", "NoSchedule", "NoExecute"):
            yield Problem(
                f"{path}[{index}].effect",
                f'Unsupported value: "{taint.get("effect", "")}"',
                "FieldValueNotSupported",
            )


def _claim(new: Object, old: Object | None) -> Iterator[Problem]:
    if old is not None and new.get("spec") != old.get("spec"):
        yield Problem("spec", "Invalid value: field is immutable")
    requests = ((new.get("spec") or {}).get("devices") or {}).get("requests") or []
    if len(requests) > 32:
        yield _too_many("spec.devices.requests", len(requests), 32)
    yield from _duplicates("spec.devices.requests", [found.get("name") for found in requests])
    status = new.get("status") or {}
    before = (old or {}).get("status") or {}
    if before.get("allocation") and status.get("allocation"):
        if status["allocation"] != before["allocation"]:
            yield Problem("status.allocation", "Invalid value: field is immutable")
    elif status.get("reservedFor") and not status.get("allocation"):
        yield Problem(
            "status.reservedFor",
            "Forbidden: may not be specified when `allocated` is not set",
            "FieldValueForbidden",
        )
    yield from _claim_devices(status)


def _claim_devices(status: Object) -> Iterator[Problem]:
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    allocated = [_device_id(result) for result in results]
    entries = [_device_id(entry) for entry in status.get("devices") or []]
    for index, entry in enumerate(entries):
        if entry not in allocated:
            message = f"Invalid value: {'/'.join(entry)}: must be an allocated device in the claim"
            yield Problem(f"status.devices[{index}]", message)
    yield from _duplicates("status.devices", ["/".join(entry) for entry in entries])


def _device_id(entry: Object) -> tuple[str, ...]:
    return tuple(
        str(entry[field]) for field in ("driver", "pool", "device", "shareID") if entry.get(field)
    )


def _quantity(path: str, value: object) -> Iterator[Problem]:
    try:
        quantity(value)
    except ValueError as error:
        yield Problem(path, f"Invalid value: {error}")


def _duplicates(path: str, names: Sequence[object]) -> Iterator[Problem]:
    for position, name in enumerate(names):
        if name in names[:position]:
            yield Problem(
                f"{path}[{position}]", f'Duplicate value: "{name}"', "FieldValueDuplicate"
            )


def _too_many(path: str, count: int, limit: int) -> Problem:
    return Problem(path, f"Too many: {count}: must have at most {limit} items", _TOO_MANY)
