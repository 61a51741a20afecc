"""What a request does to the store; everything but HTTP."""

import copy
import secrets
import uuid
from dataclasses import dataclass
from typing import Any

from kubeletplugin.contract import Object
from kubeletplugin.testing.apiserver import apply, errors
from kubeletplugin.testing.apiserver.resources import Features, Resource, now, prepare
from kubeletplugin.testing.apiserver.storage import Key, Store
from kubeletplugin.testing.apiserver.validation import validate

_MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "generation")


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL names. ``namespace`` is None for all namespaces, "" for cluster scope."""

    resource: Resource
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return self.resource.plural, self.namespace or "", self.name


class Operations:
    """Create, update, apply, delete; each one atomic, none touches the store when ``dry``."""

    def __init__(self, store: Store, minor: int, dropped: Features) -> None:
        self._store = store
        self._minor = minor
        self._dropped = dropped
        self._applied: dict[tuple[Key, str], dict[str, Object]] = {}  # by manager

    def get(self, target: Target) -> Object:
        found = self._store.get(target.key)
        if found is None:
            raise errors.not_found(target.resource.plural, target.resource.group, target.name)
        return found

    def create(self, target: Target, body: Object, dry: bool) -> Object:
        resource = target.resource
        metadata = dict(_checked(target, body))
        if metadata.get("resourceVersion"):
            raise errors.internal("resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        if resource.namespaced:
            metadata["namespace"] = target.namespace
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if resource.counts_generations:
            metadata["generation"] = 1
        new = {**_typed(resource), **body, "metadata": metadata}
        new = self._admitted(resource, new, None)
        key = (resource.plural, target.namespace or "", metadata["name"])
        if self._store.get(key) is not None:
            raise errors.already_exists(resource.plural, resource.group, metadata["name"])
        return new if dry else self._store.put(key, new)

    def update(self, target: Target, body: Object, dry: bool) -> Object:
        old = self.get(target)
        metadata = _checked(target, body)
        self._guard(target, old, metadata.get("uid"), metadata.get("resourceVersion"))
        new = {**_typed(target.resource), **_merged(target, old, body, metadata)}
        new = self._admitted(target.resource, new, old)
        if target.resource.counts_generations and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        if dry or new == old:  # etcd does not write what does not change
            return new
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._store.put(target.key, new)
            return self._store.remove(target.key)
        return self._store.put(target.key, new)

    def merge_patch(self, target: Target, patch: Object, dry: bool) -> Object:
        old = self.get(target)
        body = _merge_patch(copy.deepcopy(old), patch)
        if "resourceVersion" not in (patch.get("metadata") or {}):
            body["metadata"].pop("resourceVersion", None)
        return self.update(target, body, dry)

    def apply(
        self, target: Target, config: Object, manager: str, force: bool, dry: bool
    ) -> Object:
        if not manager:
            raise errors.invalid_options(
                "PatchOptions",
                "fieldManager",
                "Required value: is required for apply patch",
                "FieldValueRequired",
            )
        for field in ("apiVersion", "kind"):
            if field not in config:
                raise errors.bad_request(f"apply: {field} must be set in the patch")
        managers = self._applied.setdefault((target.key, target.subresource), {})
        others = {name: owned for name, owned in managers.items() if name != manager}
        differing = apply.disagreements(config, others)
        if differing and not force:
            message = f"Apply failed with {len(differing)} conflicts: " + "; ".join(differing)
            raise errors.StatusError(409, "Conflict", message)
        live = self._store.get(target.key)
        if live is None and not target.subresource:
            stored = self.create(target, config, dry)
        else:
            body = apply.merge(self.get(target), config, managers.get(manager))
            if "resourceVersion" not in (config.get("metadata") or {}):
                body["metadata"] = {**body["metadata"], "resourceVersion": None}
            stored = self.update(target, body, dry)
        if not dry:
            managers[manager] = copy.deepcopy(config)
        return stored

    def delete(self, target: Target, options: Object, dry: bool) -> Object:
        old = self.get(target)
        wanted = options.get("preconditions") or {}
        self._guard(target, old, wanted.get("uid"), wanted.get("resourceVersion"))
        if dry:
            return old
        if old["metadata"].get("finalizers"):
            if old["metadata"].get("deletionTimestamp"):
                return old
            metadata = {**old["metadata"], "deletionTimestamp": now()}
            return self._store.put(target.key, {**old, "metadata": metadata})
        for subresource in ("", "status"):
            self._applied.pop((target.key, subresource), None)
        return self._store.remove(target.key)

    def _admitted(self, resource: Resource, new: Object, old: Object | None) -> Object:
        prepared = prepare(resource, new, old, self._dropped)
        problems = validate(resource, prepared, old, self._minor)
        if problems:
            name = str(prepared["metadata"].get("name", ""))
            raise errors.invalid(resource.kind, resource.group, name, problems)
        return prepared

    def _guard(self, target: Target, old: Object, uid: Any, version: Any) -> None:
        resource = target.resource
        metadata = old["metadata"]
        if uid and uid != metadata["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
            raise errors.conflict(
                resource.plural, resource.group, target.name, why + metadata["uid"]
            )
        if version and version != metadata["resourceVersion"]:
            raise errors.conflict(resource.plural, resource.group, target.name, _MODIFIED)


def _typed(resource: Resource) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind}


def _checked(target: Target, body: Object) -> Object:
    """The metadata of ``body``, which must be of the kind and name in the URL."""
    resource = target.resource
    for field, wanted in _typed(resource).items():
        if body.get(field, wanted) != wanted:
            raise errors.bad_request(
                f"the {field} in the data ({body[field]}) does not match the URL's ({wanted})"
            )
    metadata: Object = body.get("metadata") or {}
    if target.name and metadata.get("name", target.name) != target.name:
        raise errors.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL"
            f" ({target.name})"
        )
    if resource.namespaced and metadata.get("namespace", target.namespace) != target.namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return metadata


def _merged(target: Target, old: Object, body: Object, metadata: Object) -> Object:
    """The new object: a status request changes the status alone, any other all but the status."""
    if target.subresource == "status":
        new = {**old, "status": body.get("status")}
        if new["status"] is None:
            del new["status"]
        return {**new, "metadata": dict(old["metadata"])}
    kept = {key: old["metadata"][key] for key in _SERVER_OWNED if key in old["metadata"]}
    identity = {
        key: old["metadata"][key] for key in ("name", "namespace") if key in old["metadata"]
    }
    version = {"resourceVersion": old["metadata"]["resourceVersion"]}
    client = {key: value for key, value in metadata.items() if key not in _SERVER_OWNED}
    new = {**body, "metadata": {**client, **identity, **kept, **version}}
    if target.resource.has_status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    return new


def _merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge_patch(result.get(key), value)
    return result
