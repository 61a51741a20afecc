"""The kinds that are served, and what the API server changes in an object before storing it.

Rules follow ``kubernetes/pkg/registry/{resource,core}/*/strategy.go``.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from kubeletplugin.contract import Object
from kubeletplugin.probe import COUNTERS, SHARING, TAINTS
from kubeletplugin.quantities import canonical

Features: TypeAlias = frozenset[str]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind. ``selectable`` maps field selector names to the way to the value."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    has_status: bool = False
    counts_generations: bool = False
    selectable: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


RESOURCES = {
    (found.group, found.version, found.plural): found
    for found in (
        Resource("", "v1", "nodes", "Node", False, has_status=True),
        Resource("", "v1", "pods", "Pod", True, has_status=True, selectable=("spec.nodeName",)),
        Resource("events.k8s.io", "v1", "events", "Event", True),
        Resource(
            "resource.k8s.io",
            "v1",
            "resourceslices",
            "ResourceSlice",
            False,
            counts_generations=True,
            selectable=("spec.nodeName", "spec.driver", "spec.pool.name"),
        ),
        Resource(
            "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, has_status=True
        ),
        Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True),
        Resource(
            "resource.k8s.io",
            "v1",
            "deviceclasses",
            "DeviceClass",
            False,
            counts_generations=True,
        ),
    )
}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def prepare(resource: Resource, new: Object, old: Object | None, dropped: Features) -> Object:
    """A copy of ``new`` as it would be stored; ``old`` is None at creation."""
    found = copy.deepcopy(new)
    match resource.kind:
        case "ResourceSlice":
            _prune(found.get("spec") or {})
            _drop(found, old or {}, dropped)
            _canonicalize(found.get("spec") or {})
            _default_taint_times(found)
        case "ResourceClaim":
            _default_requests(found.get("spec") or {})
            if old is None:
                found.pop("status", None)
            elif not (found.get("status") or {}).get("allocation"):
                (found.get("status") or {}).pop("devices", None)  # go with the allocation
        case "ResourceClaimTemplate":
            _default_requests((found.get("spec") or {}).get("spec") or {})
        case "Pod" if old is None:
            found["status"] = {"phase": "Pending"}
        case _:
            pass
    return found


def _prune(spec: Object) -> None:
    """Empty lists and maps are the same as none and are not written back."""
    for content in (spec, *_devices(spec)):
        for field in [field for field, value in content.items() if value in (None, [], {})]:
            del content[field]


def _drop(found: Object, old: Object, features: Features) -> None:
    """What a server without these features loses, unless the old object has it already."""
    for feature in features:
        used, remove = _FEATURES[feature]
        if not used(old.get("spec") or {}):
            remove(found.get("spec") or {})


def _devices(spec: Object) -> list[Object]:
    return [device for device in spec.get("devices") or [] if isinstance(device, dict)]


def _uses_taints(spec: Object) -> bool:
    return any(device.get("taints") for device in _devices(spec))


def _remove_taints(spec: Object) -> None:
    for device in _devices(spec):
        device.pop("taints", None)


def _uses_counters(spec: Object) -> bool:
    return bool(spec.get("sharedCounters")) or any(
        device.get("consumesCounters") for device in _devices(spec)
    )


def _remove_counters(spec: Object) -> None:
    spec.pop("sharedCounters", None)
    spec.pop("perDeviceNodeSelection", None)
    for device in _devices(spec):
        for field in ("consumesCounters", "nodeName", "nodeSelector", "allNodes"):
            device.pop(field, None)


def _uses_sharing(spec: Object) -> bool:
    return any("allowMultipleAllocations" in device for device in _devices(spec))


def _remove_sharing(spec: Object) -> None:
    for device in _devices(spec):
        device.pop("allowMultipleAllocations", None)
        for capacity in (device.get("capacity") or {}).values():
            capacity.pop("requestPolicy", None)


_FEATURES: dict[str, tuple[Callable[[Object], bool], Callable[[Object], None]]] = {
    TAINTS: (_uses_taints, _remove_taints),
    COUNTERS: (_uses_counters, _remove_counters),
    SHARING: (_uses_sharing, _remove_sharing),
}


_QUANTITIES = frozenset({"value", "default", "min", "max", "step"})


def _canonicalize(content: Any, inside: bool = False) -> None:
    """Quantities as the server writes them back; what is not one is left to validation."""
    if isinstance(content, list):
        for item in content:
            _canonicalize(item, inside)
    elif isinstance(content, dict):
        for key, value in content.items():
            if inside and key in _QUANTITIES:
                content[key] = _canonical(value)
            elif inside and key == "validValues":
                content[key] = [_canonical(item) for item in value or []]
            else:
                _canonicalize(value, inside or key in ("capacity", "counters"))


def _canonical(value: object) -> object:
    try:
        return canonical(value)
    except ValueError:
        return value


def _default_taint_times(found: Object) -> None:
    for device in _devices(found.get("spec") or {}):
        for taint in device.get("taints") or []:
            taint.setdefault("timeAdded", now())


def _default_requests(spec: Object) -> None:
    for request in (spec.get("devices") or {}).get("requests") or []:
        for part in [request.get("exactly"), *(request.get("firstAvailable") or [])]:
            if isinstance(part, dict):
                _default_request(part)


def _default_request(part: dict[str, Any]) -> None:
    part.setdefault("allocationMode", "ExactCount")
    if part["allocationMode"] == "ExactCount":
        part.setdefault("count", 1)
