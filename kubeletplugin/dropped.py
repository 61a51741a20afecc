"""Which feature gate is off, told from what the API server did not keep.

The fields of each gate are those that ``resourceslice/strategy.go`` sets to nil (Kubernetes 1.34
to 1.37).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kubeletplugin.contract import Object
from kubeletplugin.probe import COUNTERS, GATES, SHARING, TAINTS


def dropped_features(wanted: Object, stored: Object) -> frozenset[str]:
    """Both are ``spec`` of a ResourceSlice. Empty if the difference has another reason."""
    missing = _used(wanted) - _used(stored)
    return frozenset(feature for feature, _ in missing)


def explain(features: frozenset[str]) -> str:
    if not features:
        return "the API server stored something else than was written, for an unknown reason"
    gates = ", ".join(sorted(GATES[feature] for feature in features))
    return (
        f"the API server drops the fields of {', '.join(sorted(features))}: feature gate {gates} "
        "is off; it must be on in kube-apiserver, kube-scheduler and kube-controller-manager"
    )


def _used(spec: Object) -> frozenset[tuple[str, str]]:
    """Feature and the place that uses it."""
    places = [(COUNTERS, f"set {found['name']}") for found in spec.get("sharedCounters") or ()]
    for device in spec.get("devices") or ():
        places += [(feature, f"{device['name']} {what}") for feature, what in _device(device)]
    return frozenset(places)


def _device(device: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for taint in device.get("taints") or ():
        yield TAINTS, str(taint.get("key"))
    for use in device.get("consumesCounters") or ():
        yield COUNTERS, str(use.get("counterSet"))
    if "allowMultipleAllocations" in device:
        yield SHARING, "allowMultipleAllocations"
    for name, capacity in (device.get("capacity") or {}).items():
        if isinstance(capacity, Mapping) and capacity.get("requestPolicy"):
            yield SHARING, str(name)
