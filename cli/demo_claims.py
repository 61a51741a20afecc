"""The claims of the demo, chosen by what the node offers. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.drawing import attribute

NAMESPACE = "demo"
CLASS = "gpu"


@dataclass(frozen=True, slots=True)
class Wish:
    """A claim and the pod that uses it."""

    claim: str
    pod: str
    words: str  # what is asked for
    spec: Mapping[str, Any]  # ``spec.devices`` of the ResourceClaim

    def claim_object(self) -> dict[str, Any]:
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": self.claim, "namespace": NAMESPACE},
            "spec": {"devices": dict(self.spec)},
        }

    def pod_object(self, node: str) -> dict[str, Any]:
        container = {"name": "main", "image": "app", "resources": {"claims": [{"name": "gpus"}]}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.pod, "namespace": NAMESPACE},
            "spec": {
                "nodeName": node,
                "containers": [container],
                "resourceClaims": [{"name": "gpus", "resourceClaimName": self.claim}],
            },
        }


def wishes(devices: Sequence[Mapping[str, Any]], driver: str, cel: bool) -> list[Wish]:
    """One card, two cards, one card by what it is; as many of them as fit, in this order."""
    found = [_one(), _two(devices, driver), _selected(devices[0], driver, cel)]
    kept, left = [], len(devices)
    for wish in found:
        need = wish.spec["requests"][0]["exactly"]["count"]
        if need <= left:
            kept.append(wish)
            left -= need
    return kept


def _request(count: int, selectors: Sequence[str] = ()) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": CLASS, "count": count}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    return {"name": "gpu", "exactly": exactly}


def _one() -> Wish:
    return Wish("one-card", "notebook", "one whole card", {"requests": [_request(1)]})


def _two(devices: Sequence[Mapping[str, Any]], driver: str) -> Wish:
    groups = Counter(attribute(device, "nvlinkGroup") for device in devices)
    linked = any(name and count > 1 for name, count in groups.items())
    spec: dict[str, Any] = {"requests": [_request(2)]}
    if not linked:
        return Wish("two-cards", "training", "two whole cards (none here have NVLink)", spec)
    spec["constraints"] = [{"requests": ["gpu"], "matchAttribute": f"{driver}/nvlinkGroup"}]
    return Wish("two-linked", "training", "two cards of one NVLink group", spec)


def _selected(device: Mapping[str, Any], driver: str, cel: bool) -> Wish:
    product = attribute(device, "productName")
    selectors = [f"device.attributes['{driver}'].productName == '{product}'"]
    words = f"one {product}, selected by CEL"
    if cel:
        memory = f"device.capacity['{driver}'].memory"
        selectors.append(f"{memory}.compareTo(quantity('8Gi')) >= 0")
        words = f"one {product} with 8Gi of memory or more, selected by CEL"
    return Wish("by-cel", "inference", words, {"requests": [_request(1, selectors)]})
