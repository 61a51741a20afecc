"""A small stand-in for the scheduler's allocator, for demos and tests without a scheduler.

It takes the first device that fits, ResourceSlices by name and devices by position, as the real
one does. It knows counts, ``firstAvailable``, CEL selectors, ``matchAttribute``, taints, admin
access, opaque config, capacity that is consumed and shared counters. It does not know ``All`` or
``distinctAttribute``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from kubeletplugin.claims import claim_path
from kubeletplugin.contract import Object
from kubeletplugin.kube import KubeClient
from kubeletplugin.testing.allocator_capacity import (
    Amounts,
    DeviceId,
    SetId,
    Taken,
    Use,
    at_least,
    consumption,
    counter_sets,
    counters_left,
    counters_suffice,
    has_room,
    is_shared,
    taken,
    written,
)
from kubeletplugin.testing.allocator_cel import Selector, attribute_value, compile_selector

API = "/apis/resource.k8s.io/v1"


class AllocationError(Exception):
    """The claim fits nowhere, or asks for what this allocator does not know."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device of a complete pool."""

    driver: str
    pool: str
    node: str
    device: Mapping[str, Any]

    @property
    def id(self) -> DeviceId:
        return self.driver, self.pool, str(self.device["name"])


@dataclass(frozen=True, slots=True)
class Need:
    """One device to find."""

    request: str  # "main" or "main/sub"
    selectors: tuple[Selector, ...]
    tolerations: tuple[Object, ...] = ()
    admin: bool = False
    capacity: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """What is published and what is taken."""

    candidates: tuple[Candidate, ...]
    taken: Taken = field(default_factory=Taken)
    left: Mapping[SetId, Amounts] = field(default_factory=dict)  # of counters

    @classmethod
    def of(cls, slices: Sequence[Object], claims: Sequence[Object]) -> "State":
        found, held = tuple(candidates(slices)), taken(claims)
        sets = dict(
            each
            for driver, pool, spec in complete(slices)
            for each in counter_sets(driver, pool, spec)
        )
        by_id = {each.id: each.device for each in found}
        return cls(found, held, counters_left(sets, by_id, held))


async def allocate(
    client: KubeClient, namespace: str, name: str, pod: Object, node: str | None = None
) -> Object:
    """Allocate the claim, on ``node`` if given, reserve it for ``pod`` and return it as stored.

    ``pod`` is an object with ``metadata``. A claim that is allocated already is only reserved.
    Raises ``AllocationError`` and ``ApiError``.
    """
    path = claim_path(namespace, name)
    claim = await client.get(path)
    status = dict(claim.get("status") or {})
    if not status.get("allocation"):
        classes, _ = await client.list_pages(f"{API}/deviceclasses")
        slices, _ = await client.list_pages(f"{API}/resourceslices")
        claims, _ = await client.list_pages(f"{API}/resourceclaims")
        by_name = {found["metadata"]["name"]: found for found in classes}
        status["allocation"] = choose(claim, by_name, State.of(slices, claims), node)
    consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    if consumer not in (status.get("reservedFor") or []):
        status["reservedFor"] = [*(status.get("reservedFor") or []), consumer]
    return await client.update(f"{path}/status", {**claim, "status": status})


async def release(client: KubeClient, namespace: str, name: str) -> Object:
    """Take reservations and allocation away, as when the last pod is gone."""
    path = claim_path(namespace, name)
    claim = await client.get(path)
    kept = {
        key: value
        for key, value in (claim.get("status") or {}).items()
        if key not in ("allocation", "reservedFor", "devices")
    }
    return await client.update(f"{path}/status", {**claim, "status": kept})


def complete(slices: Sequence[Object]) -> Iterator[tuple[str, str, Object]]:
    """Driver, pool and spec of the ResourceSlices of pools whose newest generation is complete,
    by name."""
    pools: dict[tuple[str, str], list[Object]] = {}
    for found in sorted(slices, key=lambda found: str(found["metadata"]["name"])):
        spec = found["spec"]
        pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    for (driver, pool), specs in pools.items():
        newest = max(spec["pool"]["generation"] for spec in specs)
        current = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if len(current) == current[0]["pool"]["resourceSliceCount"]:
            yield from ((driver, pool, spec) for spec in current)


def candidates(slices: Sequence[Object]) -> Iterator[Candidate]:
    """Devices of complete pools, in the order they are taken."""
    for driver, pool, spec in complete(slices):
        for device in spec.get("devices") or []:
            yield Candidate(driver, pool, spec.get("nodeName", ""), device)


def choose(
    claim: Object, classes: Mapping[str, Object], state: State, node: str | None = None
) -> Object:
    """``status.allocation`` for ``claim``. Raises ``AllocationError``."""
    spec = claim["spec"].get("devices") or {}
    constraints = [_match_attribute(found) for found in spec.get("constraints") or []]
    nodes = sorted({found.node for found in state.candidates}) if node is None else [node]
    for needs in _alternatives(spec.get("requests") or [], classes):
        for place in nodes:
            here = [found for found in state.candidates if found.node == place]
            chosen = _Search(needs, here, state, constraints).run([])
            if chosen is not None:
                return _allocation(claim, classes, needs, chosen, place)
    metadata = claim["metadata"]
    raise AllocationError(
        f"claim {metadata.get('namespace')}/{metadata['name']}: no node has free devices for all"
        f" of its requests ({len(state.candidates)} devices on {len(nodes)} nodes looked at,"
        f" {len(state.taken.ids)} taken)"
    )


def _alternatives(
    requests: Sequence[Object], classes: Mapping[str, Object]
) -> Iterator[tuple[Need, ...]]:
    """Every way to read the requests, ``firstAvailable`` in the order of preference."""
    if not requests:
        yield ()
        return
    first, *rest = requests
    parts = first.get("firstAvailable")
    named = (
        [(f"{first['name']}/{part['name']}", part) for part in parts]
        if parts
        else [(first["name"], first.get("exactly") or {})]
    )
    for name, part in named:
        for others in _alternatives(rest, classes):
            yield (*_needs(name, part, classes), *others)


def _needs(name: str, part: Object, classes: Mapping[str, Object]) -> tuple[Need, ...]:
    if part.get("allocationMode", "ExactCount") != "ExactCount":
        raise AllocationError(
            f"request {name}: this allocator does not know allocationMode All; use a real"
            " scheduler"
        )
    device_class = classes.get(part.get("deviceClassName", ""))
    if device_class is None:
        raise AllocationError(
            f"request {name}: there is no DeviceClass {part.get('deviceClassName')!r}"
        )
    sources = [*(device_class["spec"].get("selectors") or []), *(part.get("selectors") or [])]
    selectors = tuple(compile_selector(found["cel"]["expression"]) for found in sources)
    tolerations = tuple(part.get("tolerations") or ())
    capacity = (part.get("capacity") or {}).get("requests") or {}
    need = Need(name, selectors, tolerations, bool(part.get("adminAccess")), capacity)
    return (need,) * int(part.get("count", 1))


@dataclass(frozen=True, slots=True)
class _Pick:
    found: Candidate
    use: Use


@dataclass(frozen=True, slots=True)
class _Search:
    """Depth first, so the first devices that fit together win."""

    needs: Sequence[Need]
    here: Sequence[Candidate]
    state: State
    constraints: Sequence["_Constraint"]

    def run(self, chosen: list[_Pick]) -> list[_Pick] | None:
        if len(chosen) == len(self.needs):
            return chosen
        need = self.needs[len(chosen)]
        for found in self.here:
            use = self._use(need, found, chosen)
            if use is None or not _fits(need, found):
                continue
            picked = [*chosen, _Pick(found, use)]
            devices = [pick.found for pick in picked]
            if all(constraint.holds(self.needs, devices) for constraint in self.constraints):
                result = self.run(picked)
                if result is not None:
                    return result
        return None

    def _use(self, need: Need, found: Candidate, chosen: Sequence[_Pick]) -> Use | None:
        """The device as ``need`` would have it, if it has that beside ``chosen``. The devices of
        one request differ, shared ones too."""
        asked = zip(self.needs, chosen, strict=False)
        if any(pick.found == found and each.request == need.request for each, pick in asked):
            return None
        if is_shared(found.device):
            consumed = consumption(found.device, need.capacity)
            if consumed is None:
                return None
            use = Use(found.id, found.device, consumed)
        elif at_least(found.device, need.capacity):
            use = Use(found.id, found.device, None)
        else:
            return None
        if need.admin:
            return use
        others = [
            pick.use for each, pick in zip(self.needs, chosen, strict=False) if not each.admin
        ]
        fits = has_room(use, self.state.taken, others) and counters_suffice(
            use, self.state.left, self.state.taken, others
        )
        return use if fits else None


def _fits(need: Need, found: Candidate) -> bool:
    for taint in found.device.get("taints") or []:
        if taint["effect"] != "None" and not any(
            _tolerates(toleration, taint) for toleration in need.tolerations
        ):
            return False
    return all(selector(found.driver, found.device) for selector in need.selectors)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (
        taint["key"],
        taint.get("value", ""),
    )


@dataclass(frozen=True, slots=True)
class _Constraint:
    attribute: str  # qualified
    requests: tuple[str, ...]  # empty: all

    def holds(self, needs: Sequence[Need], picked: Sequence[Candidate]) -> bool:
        """``picked`` belongs to the first of ``needs``. A device without the attribute fails."""
        values = [
            attribute_value(found.driver, found.device, self.attribute)
            for need, found in zip(needs, picked, strict=False)
            if not self.requests or {need.request, need.request.split("/")[0]} & {*self.requests}
        ]
        return not values or (values[0] is not None and all(one == values[0] for one in values))


def _match_attribute(found: Object) -> _Constraint:
    if not found.get("matchAttribute"):
        raise AllocationError(f"constraint {found}: this allocator knows matchAttribute only")
    return _Constraint(found["matchAttribute"], tuple(found.get("requests") or ()))


def _allocation(
    claim: Object,
    classes: Mapping[str, Object],
    needs: Sequence[Need],
    chosen: Sequence[_Pick],
    node: str,
) -> Object:
    spec = claim["spec"].get("devices") or {}
    results = [
        {
            "request": need.request,
            "driver": pick.found.driver,
            "pool": pick.found.pool,
            "device": pick.found.device["name"],
            **({"adminAccess": True} if need.admin else {}),
            **_share(claim, position, pick.use),
        }
        for position, (need, pick) in enumerate(zip(needs, chosen, strict=True))
    ]
    config = [
        *_class_config(spec, classes, {need.request for need in needs}),
        *_claim_config(spec),
    ]
    allocation: Object = {
        "devices": {"results": results, **({"config": config} if config else {})}
    }
    if node:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        allocation["nodeSelector"] = {"nodeSelectorTerms": terms}
    return allocation


def _share(claim: Object, position: int, use: Use) -> Object:
    """The real scheduler draws the ID; here it follows from the claim."""
    if use.consumed is None:
        return {}
    metadata = claim["metadata"]
    seed = f"{metadata.get('uid', metadata['name'])}/{position}"
    return {
        "shareID": str(uuid5(NAMESPACE_OID, seed)),
        "consumedCapacity": written(use.consumed),
    }


def _class_config(spec: Object, classes: Mapping[str, Object], used: set[str]) -> Iterator[Object]:
    for request in spec.get("requests") or []:
        parts = [(request["name"], request.get("exactly") or {})]
        parts += [
            (f"{request['name']}/{part['name']}", part)
            for part in request.get("firstAvailable") or []
        ]
        for name, part in parts:
            if name in used:
                for entry in classes[part["deviceClassName"]]["spec"].get("config") or []:
                    yield {"source": "FromClass", "requests": [name], **entry}


def _claim_config(spec: Object) -> Iterator[Object]:
    for entry in spec.get("config") or []:
        yield {"source": "FromClaim", **entry}
