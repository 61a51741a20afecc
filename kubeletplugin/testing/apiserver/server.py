"""The embedded API server: start, stop, outages, injected errors, counts."""

import socket
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from aiohttp import web

from kubeletplugin.contract import Object
from kubeletplugin.kube import KubeClient
from kubeletplugin.testing.apiserver import errors
from kubeletplugin.testing.apiserver.handlers import WRITES, Handlers, parse_target, verb_of
from kubeletplugin.testing.apiserver.operations import Operations
from kubeletplugin.testing.apiserver.storage import Store


@dataclass
class Fault:
    """An answer to give instead of the right one, ``count`` times."""

    code: int
    reason: str
    message: str
    verb: str | None  # None: any
    resource: str | None  # plural, None: any
    count: int
    retry_after: int | None = None
    after: bool = False  # do the work first, then answer with the error

    def fits(self, verb: str, resource: str) -> bool:
        return self.count > 0 and self.verb in (None, verb) and self.resource in (None, resource)


class ApiServer:
    """An API server in this process: ``async with ApiServer() as server: server.client()``."""

    def __init__(
        self,
        *,
        port: int = 0,
        version: str = "v1.37.2",
        drop_features: Collection[str] = (),
        tokens: Collection[str] = (),
        bookmark_s: float = 10.0,
    ) -> None:
        """``drop_features``: of "taints", "counters", "sharing", whose fields the server loses.

        ``tokens``: bearer tokens that are let in; empty lets everybody in.
        """
        self.port = port  # 0: a free one, known after the start
        self.tokens = set(tokens)
        self.requests: Counter[tuple[str, str]] = Counter()
        """All requests by RBAC verb and resource."""
        self.writes: Counter[tuple[str, str]] = Counter()
        """Requests that would change something: dry runs are left out, refused ones are in."""
        self.store = Store()
        self._version = version
        minor = int(version.split(".")[1])
        operations = Operations(self.store, minor, frozenset(drop_features))
        self._handlers = Handlers(self.store, operations, bookmark_s)
        self._faults: list[Fault] = []
        self._runner: web.AppRunner | None = None
        self._clients: list[KubeClient] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str | None = None) -> KubeClient:
        """A client that is closed with the server."""
        client = KubeClient.for_url(self.url, token)
        self._clients.append(client)
        return client

    def objects(self, plural: str, namespace: str | None = None) -> list[Object]:
        """What is stored, in the order of names. Not to be changed."""
        return self.store.items(plural, namespace)

    def fail(  # noqa: PLR0913
        self,
        code: int,
        *,
        verb: str | None = None,
        resource: str | None = None,
        count: int = 1,
        reason: str = "InternalError",
        message: str = "injected",
        retry_after: int | None = None,
        after: bool = False,
    ) -> Fault:
        """Answer the next ``count`` matching requests with ``code``; a ``count`` of the result
        shows how many are left, setting it to 0 ends it."""
        fault = Fault(code, reason, message, verb, resource, count, retry_after, after)
        self._faults.append(fault)
        return fault

    def compact(self) -> None:
        """Watches and list pages that start before now answer 410."""
        self.store.compact()

    async def start(self) -> None:
        application = web.Application(client_max_size=8 << 20)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        self._clients.clear()
        await self.pause()

    async def pause(self) -> None:
        """Cut all connections and refuse new ones. What is stored stays."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def resume(self) -> None:
        """Listen again on the same port."""
        await self.start()

    async def __aenter__(self) -> "ApiServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._route(request)
        except errors.StatusError as error:
            return web.json_response(error.body(), status=error.code)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        self._authenticate(request)
        if request.path == "/version":
            major, minor = self._version.removeprefix("v").split(".")[:2]
            body = {"major": major, "minor": minor, "gitVersion": self._version}
            return web.json_response(body)
        if request.path in ("/readyz", "/livez", "/healthz"):
            return web.Response(text="ok")
        target = parse_target(request.path)
        verb = verb_of(request.method, target, request.query)
        resource = "/".join(filter(None, (target.resource.plural, target.subresource)))
        self.requests[verb, resource] += 1
        if verb in WRITES and "dryRun" not in request.query:
            self.writes[verb, resource] += 1
        fault = next((fault for fault in self._faults if fault.fits(verb, resource)), None)
        if fault is None:
            return await self._handlers.answer(request, target, verb)
        fault.count -= 1
        if fault.after:
            await self._handlers.answer(request, target, verb)
        return _answer(fault)

    def _authenticate(self, request: web.Request) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens and token not in self.tokens:
            raise errors.StatusError(401, "Unauthorized", "Unauthorized")


def _answer(fault: Fault) -> web.Response:
    body = errors.StatusError(fault.code, fault.reason, fault.message).body()
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return web.json_response(body, status=fault.code, headers=headers)
