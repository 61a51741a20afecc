"""The one module that talks HTTP to the API server: raw JSON in, raw JSON out.

Transport is ``http1``: kept-alive connections, without typed models (they drop fields they do not
know), without a client-side rate limit and without repeated writes: the caller knows what a repeat
means. Redirects are errors. ``kubeconfig`` finds the server and the credentials.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlencode

from kubeletplugin.contract import Object
from kubeletplugin.http1 import Pool, Stream
from kubeletplugin.kubeconfig import Access, KubeConfigError, StaticToken, find_access
from kubeletplugin.wire import HttpError, Reply

Query: TypeAlias = Sequence[tuple[str, str]]

TIMEOUT_S = 30.0
QUIET_S = 90.0  # bookmarks come about once a minute: longer silence is a dead connection
PAGE = 500
MAX_LINE = 4 << 20  # bytes of one watch event; etcd holds objects to 1.5 MiB
MAX_NESTING = 10_000  # levels; kube-apiserver reads no deeper JSON


class ApiError(Exception):
    """The API server answered with an error (``metav1.Status``)."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        details: Object | None = None,
    ) -> None:
        super().__init__(f"{message} (HTTP {code} {reason})" if code else message)
        self.code = code  # HTTP status; 0: no answer
        self.reason = reason  # "NotFound", "Conflict", "Invalid", … ; "" if the answer has none
        self.message = message
        self.retry_after = retry_after  # seconds
        self.details = details or {}  # name, kind, causes, … as the server put them


class Unreachable(ApiError):  # noqa: N818  (a state of the world, not a mistake)
    """No answer: connection refused or cut, deadline passed, credentials not readable."""

    def __init__(self, server: str, cause: str) -> None:
        super().__init__(0, "Unreachable", f"API server {server}: {cause}")
        self.server = server
        self.cause = cause


class KubeClient:
    """One connection pool to one API server. Close it."""

    def __init__(self, access: Access, user_agent: str = "kubeletplugin") -> None:
        self._access = access
        self._user_agent = user_agent
        self._pool = Pool(access.server, access.tls, access.tls_server_name, access.proxy)
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests sent, by RBAC verb and resource: ``("list", "resourceslices")``."""

    @classmethod
    def from_environment(
        cls, kubeconfig: str | None = None, user_agent: str = "kubeletplugin"
    ) -> "KubeClient":
        """Explicit kubeconfig, ``$KUBECONFIG``, service account or ``~/.kube/config``.

        Raises ``KubeConfigError``.
        """
        return cls(find_access(kubeconfig), user_agent)

    @classmethod
    def for_url(cls, url: str, token: str | None = None) -> "KubeClient":
        """A server without TLS, for tests and demos."""
        return cls(Access(url.rstrip("/"), StaticToken(f"Bearer {token}" if token else None)))

    @property
    def server(self) -> str:
        return self._access.server

    async def get(
        self,
        path: str,
        query: Query = (),
        *,
        timeout: float = TIMEOUT_S,  # noqa: ASYNC109  (seconds for the whole exchange)
    ) -> Object:
        """One object, or one page of a list. ``path`` must be URL-safe (object names are)."""
        return await self._call("get", path, query, limit_s=timeout)

    async def list_pages(
        self, path: str, query: Query = (), limit: int = PAGE
    ) -> tuple[list[Object], str]:
        """All items and the resource version to watch from; a consistent read."""
        items: list[Object] = []
        token = ""
        while True:
            more = [("continue", token)] if token else []
            page = await self._call("list", path, [*query, ("limit", str(limit)), *more])
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return items, str(metadata.get("resourceVersion", ""))

    async def create(self, path: str, body: Object, query: Query = ()) -> Object:
        """``path`` is the collection."""
        return await self._call("create", path, query, body)

    async def update(self, path: str, body: Object, query: Query = ()) -> Object:
        """PUT; a ``resourceVersion`` in ``body`` guards against lost updates (409)."""
        return await self._call("update", path, query, body)

    async def apply(
        self, path: str, body: Object, *, field_manager: str, force: bool = False
    ) -> Object:
        """Server-side apply. JSON is YAML, so it goes out as it is."""
        query = [("fieldManager", field_manager), ("force", "true" if force else "false")]
        return await self._call("patch", path, query, body, kind="application/apply-patch+yaml")

    async def merge_patch(self, path: str, body: Object, query: Query = ()) -> Object:
        """RFC 7386 JSON merge patch."""
        return await self._call("patch", path, query, body, kind="application/merge-patch+json")

    async def delete(
        self,
        path: str,
        query: Query = (),
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Object:
        """With preconditions: another object of that name answers 409, a missing one 404.

        ``path`` may be a collection; ``query`` then says which of it.
        """
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value is not None}
        if not preconditions:
            return await self._call("delete", path, query)
        # The server ignores the query's options, dryRun too, as soon as there is a body.
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        dry = [value for key, value in query if key == "dryRun"]
        options |= {"preconditions": preconditions, **({"dryRun": dry} if dry else {})}
        return await self._call("delete", path, query, options)

    async def version(self) -> Object:
        """``GET /version``: ``major``, ``minor`` and ``gitVersion`` as strings."""
        return await self._call("get", "/version")

    async def watch(
        self, path: str, query: Query = (), opened: Callable[[], None] | None = None
    ) -> AsyncIterator[Object]:
        """Events as the server sends them, bookmarks included, until it ends the stream.

        ``opened`` is called once the server has accepted the watch.
        Raises ``ApiError`` for an ERROR event or status (410: list again) and ``Unreachable``
        when the connection is cut or nothing came for ``QUIET_S``.
        """
        given = dict(query)
        given.setdefault("timeoutSeconds", str(random.randint(240, 480)))  # noqa: S311
        full = {**given, "watch": "1", "allowWatchBookmarks": "true"}
        headers = await self._headers("watch", path)
        try:
            async with self._pool.stream(
                _target(path, list(full.items())), headers, QUIET_S
            ) as got:
                if got.reply.status >= 300:
                    raw = b"".join([chunk async for chunk in got.chunks()])
                    raise _refusal(f"GET {path}", got.reply, raw)
                if opened is not None:
                    opened()
                async for line in _lines(got, self.server):
                    yield _event(_decoded(line, self.server))
        except (HttpError, TimeoutError, OSError) as error:
            raise Unreachable(self.server, f"watch of {path}: {_cause(error)}") from error

    async def close(self) -> None:
        await self._pool.close()

    async def __aenter__(self) -> "KubeClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(
        self,
        verb: str,
        path: str,
        query: Query = (),
        body: Object | None = None,
        *,
        kind: str = "application/json",
        limit_s: float = TIMEOUT_S,
    ) -> Object:
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        extra = {} if body is None else {"Content-Type": kind}
        method, target = _METHODS[verb], _target(path, query)
        try:
            headers = await self._headers(verb, path) | extra
            reply = await self._pool.request(method, target, headers, data, limit_s)
            if reply.status == 401 and await self._renewed():
                headers = await self._headers(verb, path) | extra
                reply = await self._pool.request(method, target, headers, data, limit_s)
        except (HttpError, TimeoutError, OSError) as error:
            raise Unreachable(self.server, f"{verb} {path}: {_cause(error)}") from error
        if reply.status >= 300:
            raise _refusal(f"{method} {path}", reply, reply.body)
        return _decoded(reply.body, self.server)

    async def _headers(self, verb: str, path: str) -> dict[str, str]:
        """For one request, which is counted."""
        try:
            authorization = await self._access.credentials.header()
        except KubeConfigError as error:
            raise Unreachable(self.server, str(error)) from error
        self.requests[verb, resource_of(path)] += 1
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        return headers | ({"Authorization": authorization} if authorization else {})

    async def _renewed(self) -> bool:
        try:
            return await self._access.credentials.refresh()
        except KubeConfigError as error:
            raise Unreachable(self.server, str(error)) from error


_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}


def resource_of(path: str) -> str:
    """``/apis/g/v/namespaces/ns/resourceclaims/c/status`` → ``resourceclaims/status``."""
    parts = path.strip("/").split("/")
    start = {"api": 2, "apis": 3}.get(parts[0])
    if start is None:
        return path
    rest = parts[start:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return "/".join(rest[:1] + rest[2:3])


def _target(path: str, query: Query) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _refusal(where: str, reply: Reply, raw: bytes) -> ApiError:
    try:
        status = json.loads(raw)
        reason, message = status.get("reason") or "", status.get("message") or ""
        details = status.get("details") or {}
    except (ValueError, AttributeError):
        reason, message, details = "", raw[:200].decode(errors="replace").strip(), {}
    after = dict(reply.headers).get(b"retry-after")
    seconds = _seconds(after or details.get("retryAfterSeconds"))
    text = f"{where}: {message or reply.phrase}"
    return ApiError(reply.status, reason, text, seconds, details)


def _decoded(raw: bytes, server: str) -> Object:
    try:
        return _loads(raw)
    except ValueError as error:
        start = raw[:80].decode(errors="replace")
        raise Unreachable(server, f"the answer is not JSON: {start!r}") from error


def _loads(raw: bytes) -> Object:
    """A claim's 10 KiB of opaque parameters hold 5,000 levels of brackets, more than json reads
    with the interpreter's limit: whoever may write a claim could stop every list and watch."""
    try:
        found: Object = json.loads(raw)
    except RecursionError:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + MAX_NESTING)
        try:
            found = json.loads(raw)
        finally:
            sys.setrecursionlimit(limit)
    return found


def _seconds(value: Any) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):  # absent, or the HTTP-date form, which Kubernetes never sends
        return None


def _event(event: Object) -> Object:
    if event.get("type") == "ERROR":
        status = event.get("object") or {}
        raise ApiError(
            int(status.get("code") or 500),
            status.get("reason") or "",
            f"watch: {status.get('message') or 'error without a text'}",
            None,
            status.get("details"),
        )
    return event


async def _lines(stream: Stream, server: str) -> AsyncIterator[bytes]:
    parts: list[bytes] = []
    size = 0
    async for chunk in stream.chunks():
        *complete, rest = chunk.split(b"\n")
        for end in complete:
            yield b"".join([*parts, end])
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_LINE:
            raise Unreachable(server, f"watch event longer than {MAX_LINE} bytes")
    if size:
        raise Unreachable(server, "watch ended in the middle of an event")


def _cause(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
