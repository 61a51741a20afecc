"""HTTP requests to operations: paths, verbs, lists and watches."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

from aiohttp import web

from kubeletplugin.contract import Object
from kubeletplugin.testing.apiserver import errors
from kubeletplugin.testing.apiserver.operations import Operations, Target
from kubeletplugin.testing.apiserver.resources import RESOURCES, Resource
from kubeletplugin.testing.apiserver.selectors import FieldSelector, page
from kubeletplugin.testing.apiserver.storage import Change, CompactedError, Store

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def parse_target(path: str) -> Target:
    """``/api/v1/…`` and ``/apis/<group>/<version>/…``. Raises ``StatusError`` 404."""
    parts = path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1] if parts[1:] else ""
    rest = parts[2 if parts[0] == "api" else 3 :]
    version = parts[1] if parts[0] == "api" and parts[1:] else "".join(parts[2:3])
    namespace: str | None = None
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = RESOURCES.get((group, version, rest[0] if rest else ""))
    name, subresource = "".join(rest[1:2]), "/".join(rest[2:])
    if resource is None or subresource not in ("", *_subresources(resource)):
        raise errors.StatusError(
            404, "NotFound", "the server could not find the requested resource"
        )
    if not resource.namespaced:
        namespace = ""
    elif name and namespace is None:
        raise errors.StatusError(
            404, "NotFound", "the server could not find the requested resource"
        )
    return Target(resource, namespace, name, subresource)


def _subresources(resource: Resource) -> tuple[str, ...]:
    status = ("status",) if resource.has_status else ()
    return (*status, "eviction") if resource.plural == "pods" else status


def verb_of(method: str, target: Target, query: Mapping[str, str]) -> str:
    """The verb as RBAC names it."""
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    if method != "GET":
        return _VERBS.get(method, method.lower())
    if query.get("watch") in ("1", "true"):
        return "watch"
    return "get" if target.name else "list"


class Handlers:
    """Answers one request for a parsed target."""

    def __init__(self, store: Store, operations: Operations, bookmark_s: float) -> None:
        self._store = store
        self._operations = operations
        self._bookmark_s = bookmark_s

    async def answer(self, request: web.Request, target: Target, verb: str) -> web.StreamResponse:
        if verb == "watch":
            return await self._watch(request, target)
        if verb == "get":
            return web.json_response(self._operations.get(target))
        if verb == "list":
            return web.json_response(self._list(target, request.query))
        body = await _body(request)
        found = self._write(request, target, verb, body)
        return web.json_response(found, status=201 if verb == "create" else 200)

    def _write(self, request: web.Request, target: Target, verb: str, body: Object) -> Object:
        dry = _dry(request.query)
        if verb.startswith("delete") and body:  # options in the body replace those of the query
            dry = body.get("dryRun") == ["All"]
        if target.subresource == "eviction":  # no budgets here: always allowed
            options = body.get("deleteOptions") or {}
            return self._operations.delete(replace(target, subresource=""), options, dry)
        if verb == "create":
            return self._operations.create(target, body, dry)
        if verb == "update":
            return self._operations.update(target, body, dry)
        if verb == "delete":
            return self._operations.delete(target, body, dry)
        if verb == "deletecollection":
            return self._delete_collection(target, request.query, dry)
        return self._patch(request, target, body, dry)

    def _patch(self, request: web.Request, target: Target, body: Object, dry: bool) -> Object:
        kind = request.content_type
        if kind == "application/merge-patch+json":
            return self._operations.merge_patch(target, body, dry)
        if kind == "application/apply-patch+yaml":
            manager, force = request.query.get("fieldManager", ""), request.query.get("force")
            return self._operations.apply(target, body, manager, force == "true", dry)
        raise errors.StatusError(
            415,
            "UnsupportedMediaType",
            f"{kind}: this server takes application/merge-patch+json and"
            " application/apply-patch+yaml with JSON in it",
        )

    def _selected(self, target: Target, query: Mapping[str, str]) -> list[Object]:
        if query.get("labelSelector"):
            raise errors.bad_request("this server has no label selectors; use a fieldSelector")
        selector = FieldSelector(target.resource, query.get("fieldSelector", ""))
        items = self._store.items(target.resource.plural, target.namespace)
        return [found for found in items if selector.matches(found)]

    def _list(self, target: Target, query: Mapping[str, str]) -> Object:
        items = self._selected(target, query)
        items, metadata = page(items, query, self._store.version, self._store.compacted)
        resource = target.resource
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": items,
        }

    def _delete_collection(self, target: Target, query: Mapping[str, str], dry: bool) -> Object:
        for found in self._selected(target, query):
            metadata = found["metadata"]
            one = Target(target.resource, metadata.get("namespace", ""), metadata["name"])
            self._operations.delete(one, {}, dry)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        if target.name:
            raise errors.bad_request("watch one object with fieldSelector=metadata.name=…")
        selector = FieldSelector(target.resource, request.query.get("fieldSelector", ""))
        start = request.query.get("resourceVersion") or "0"
        if not start.isdecimal():
            raise errors.internal(f"resourceVersion: Invalid value: {start!r}")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds") or 1800)):
                await self._stream(request, response, target, selector, int(start))
        except TimeoutError:
            pass  # the end of a watch is an orderly one
        except CompactedError as error:
            await _send(response, "ERROR", errors.expired(str(error)).body())
        return response

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        target: Target,
        selector: FieldSelector,
        version: int,
    ) -> None:
        bookmarks = request.query.get("allowWatchBookmarks") in ("1", "true")
        if version == 0:  # "any version": the state first, then changes
            version = self._store.version
            for found in self._selected(target, request.query):
                await _send(response, "ADDED", found)
        while True:
            pulse = self._store.pulse
            changes = list(self._store.changes(target.resource.plural, version))
            version = self._store.version
            for change in changes:
                if target.namespace in (None, change.key[1]):
                    await _send_change(response, selector, change)
            try:
                await asyncio.wait_for(pulse.wait(), self._bookmark_s)
            except TimeoutError:
                if bookmarks:
                    await _send(response, "BOOKMARK", _bookmark(target.resource, version))


async def _send_change(
    response: web.StreamResponse, selector: FieldSelector, change: Change
) -> None:
    """An object that enters or leaves the selection is ADDED or DELETED for this watch."""
    was, matches = selector.matches(change.before), selector.matches(change.after)
    if change.kind == "DELETED":
        if was:
            await _send(response, "DELETED", change.after)
    elif matches:
        await _send(response, "MODIFIED" if was else "ADDED", change.after)
    elif was:
        await _send(response, "DELETED", change.after)


async def _send(response: web.StreamResponse, kind: str, found: Object) -> None:
    await response.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")


def _bookmark(resource: Resource, version: int) -> Object:
    return {
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
    }


def _dry(query: Mapping[str, str]) -> bool:
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        raise errors.invalid_options(
            "CreateOptions",
            "dryRun",
            f'Unsupported value: ["{value}"]: supported values: "All"',
            "FieldValueNotSupported",
        )
    return value == "All"


async def _body(request: web.Request) -> Object:
    raw = await request.read()
    try:
        body = json.loads(raw) if raw else {}
    except ValueError as error:
        raise errors.bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise errors.bad_request(f"the body is not a JSON object: {raw[:80]!r}")
    return body
