"""From what a pool should be and what is stored to the API calls, decided without any.

Rules are those of the ResourceSlice controller of kubernetes/dynamic-resource-allocation, which
the scheduler expects, except for names: they are fixed and sort, because since 1.36 the scheduler
takes ResourceSlices by name (before, in the order of creation was seen).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from kubeletplugin.contract import DesiredPool, DesiredSlice, Object
from kubeletplugin.publish_checks import check_pool
from kubeletplugin.same import same_counters, same_devices, with_stored_times

MAX_PREFIX = 253 - 64  # of a DNS subdomain; a key takes up to 63 characters and a dash
EMPTY = DesiredSlice(key="empty")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose ResourceSlices they are."""

    driver: str
    node_name: str
    node_uid: str | None = None  # None: not known; published without an owner, owners not compared


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """API calls in this order: delete, update, create; each in the order of names."""

    delete: tuple[Object, ...]  # as stored, for preconditions
    update: tuple[Object, ...]  # whole objects with their resourceVersion
    create: tuple[Object, ...]
    generation: int

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan_publish(
    desired: DesiredPool, current: Sequence[Object], identity: Identity
) -> PublishPlan:
    """``current``: all stored ResourceSlices of the identity's driver and node.

    Raises ``PublishError`` if the pool itself is wrong.
    """
    check_pool(desired)
    return plan_checked(desired, current, identity)


def plan_checked(
    desired: DesiredPool, current: Sequence[Object], identity: Identity
) -> PublishPlan:
    """The same for a pool that was checked, or that an old server has taken fields from."""
    parts = desired.slices or (EMPTY,)
    by_name = {slice_name(identity, part.key): part for part in parts}
    wanted = dict(sorted(by_name.items(), key=lambda item: item[0]))
    stored = {found["metadata"]["name"]: found for found in current}
    matched = {
        name: found
        for name, found in stored.items()
        if name in wanted and found["spec"]["pool"]["name"] == desired.name  # immutable
    }
    generation = max((_generation(found, desired.name) for found in current), default=0)
    pool: Object = {
        "name": desired.name,
        "generation": generation,
        "resourceSliceCount": len(wanted),
    }
    changed = {
        name for name, found in matched.items() if not _same(wanted[name], found, pool, identity)
    }
    new = [name for name in wanted if name not in matched]
    if new or len(changed) > 1:  # one update is atomic, more need a new generation
        pool["generation"] = generation + 1
        changed = set(matched)
    return PublishPlan(
        delete=tuple(stored[name] for name in sorted(stored) if name not in matched),
        update=tuple(
            _updated(wanted[name], matched[name], pool, identity) for name in sorted(changed)
        ),
        create=tuple(_created(name, wanted[name], pool, identity) for name in new),
        generation=pool["generation"],
    )


def slice_name(identity: Identity, key: str) -> str:
    """``<node>-<driver>-<key>``; a prefix that is too long ends in a hash. It does not depend on
    the key, so names sort by key."""
    prefix = f"{identity.node_name}-{identity.driver}".lower()
    if len(prefix) > MAX_PREFIX:
        digest = hashlib.sha256(prefix.encode()).hexdigest()[:10]
        prefix = prefix[: MAX_PREFIX - len(digest) - 1].rstrip("-.") + f"-{digest}"
    return f"{prefix}-{key.lower()}"


def _generation(found: Object, pool: str) -> int:
    stored = found["spec"]["pool"]
    return int(stored.get("generation", 0)) if stored["name"] == pool else 0


def _same(wanted: DesiredSlice, stored: Object, pool: Object, identity: Identity) -> bool:
    spec = stored["spec"]
    return (
        spec["pool"] == pool
        and _owned(stored, identity)
        and same_content(wanted, stored)
        and not spec.get("perDeviceNodeSelection")
    )


def same_content(wanted: DesiredSlice, stored: Object) -> bool:
    """Devices and counters, apart from what the server fills in."""
    spec = stored["spec"]
    return same_devices(wanted.devices, spec.get("devices") or ()) and same_counters(
        wanted.shared_counters, spec.get("sharedCounters") or ()
    )


def _owned(stored: Object, identity: Identity) -> bool:
    if identity.node_uid is None:
        return True
    owners = stored["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == identity.node_uid for owner in owners)


def _owners(identity: Identity) -> list[Object]:
    """So that the ResourceSlices go with the Node."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": identity.node_name,
            "uid": identity.node_uid,
            "controller": True,
        }
    ]


def _spec(wanted: DesiredSlice, pool: Object, identity: Identity) -> Object:
    spec: Object = {"driver": identity.driver, "pool": dict(pool), "nodeName": identity.node_name}
    if wanted.devices:
        spec["devices"] = [dict(device) for device in wanted.devices]
    if wanted.shared_counters:
        spec["sharedCounters"] = [dict(found) for found in wanted.shared_counters]
    return spec


def _updated(wanted: DesiredSlice, stored: Object, pool: Object, identity: Identity) -> Object:
    spec = _spec(wanted, pool, identity)
    if wanted.devices:
        spec["devices"] = with_stored_times(wanted.devices, stored["spec"].get("devices") or ())
    metadata = stored["metadata"]
    if not _owned(stored, identity):
        metadata = {**metadata, "ownerReferences": _owners(identity)}
    return {**stored, "metadata": metadata, "spec": spec}


def _created(name: str, wanted: DesiredSlice, pool: Object, identity: Identity) -> Object:
    metadata: Object = {"name": name}
    if identity.node_uid is not None:
        metadata["ownerReferences"] = _owners(identity)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": _spec(wanted, pool, identity),
    }
