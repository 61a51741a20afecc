"""The claims of the demo, chosen by what the node offers. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.drawing import attribute
from kubeletplugin.quantities import quantity

NAMESPACE = "demo"
CLASS, SHARES, PARTITIONS = "gpu", "gpu-share", "mig"


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
    """Two shares of one card, a partition, then one card, two cards, one card by what it is; as
    many of them as fit, in this order. ``devices`` are all that are published."""
    wholes = [each for each in devices if attribute(each, "type") == "gpu"]
    shared = next((each for each in devices if attribute(each, "type") == "mps"), None)
    cut = next((each for each in devices if attribute(each, "type") == "mig"), None)
    found: list[tuple[int, Wish]] = []
    if shared is not None:
        found += [
            (1, _share("share-a", "chat", "1/6", 25, shared)),
            (0, _share("share-b", "embedding", "1/3", 40, shared)),
        ]
    if cut is not None:
        found.append((1, _partition(cut)))
    before = sum(need for need, _ in found) + 1  # cards that are taken when two are wanted
    two = _two(wholes, driver, before)
    found += [(1, _one()), (2, two), (1, _selected(wholes[0], driver, cel))]
    kept, left = [], len(wholes)
    for need, wish in found:
        if need <= left:
            kept.append(wish)
            left -= need
    return kept


def _share(claim: str, pod: str, part: str, percent: int, device: Mapping[str, Any]) -> Wish:
    """``part`` of the card's memory, in whole Gi."""
    above, below = map(int, part.split("/"))
    total = quantity(device["capacity"]["memory"]["value"])
    size = f"{int(total * above / below) >> 30}Gi"
    capacity = {"requests": {"memory": size, "computePercent": str(percent)}}
    request = {"name": "gpu", "exactly": {"deviceClassName": SHARES, "capacity": capacity}}
    words = f"{size} and {percent} % of a card that others use too"
    return Wish(claim, pod, words, {"requests": [request]})


def _partition(device: Mapping[str, Any]) -> Wish:
    profile = attribute(device, "profile")
    request = {"name": "gpu", "exactly": {"deviceClassName": PARTITIONS}}
    return Wish(
        "partition", "batch", f"a MIG partition (the smallest: {profile})", {"requests": [request]}
    )


def _request(count: int, selectors: Sequence[str] = ()) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": CLASS, "count": count}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    return {"name": "gpu", "exactly": exactly}


def _one() -> Wish:
    return Wish("one-card", "notebook", "one whole card", {"requests": [_request(1)]})


def _two(devices: Sequence[Mapping[str, Any]], driver: str, before: int) -> Wish:
    """Of one NVLink group, if one has two cards left whichever ``before`` cards are taken."""
    groups = Counter(attribute(device, "nvlinkGroup") for device in devices)
    spare = sum(count - 1 for name, count in groups.items() if name)
    spec: dict[str, Any] = {"requests": [_request(2)]}
    if spare <= before:
        why = "the claims before may leave no NVLink pair" if spare else "none here have NVLink"
        return Wish("two-cards", "training", f"two whole cards ({why})", spec)
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
