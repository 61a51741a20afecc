"""An API server that answers from a script: each watch gets the next scene."""

import json
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from kubeletplugin.contract import Object
from kubeletplugin.kube import KubeClient

PATH = "/apis/resource.k8s.io/v1/resourceslices"
Scene = Callable[[web.Request], Awaitable[web.StreamResponse]]


def item(name: str, version: int, pad: int = 0) -> Object:
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": str(version)},
        "spec": {"pad": "x" * pad},
        "futureField": {"a": 1},  # a client must not lose it
    }


def line(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return line("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def failure(code: int, reason: str = "", after: str | None = None) -> Scene:
    """A watch that is refused with a Status."""

    async def scene(_: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "code": code, "reason": reason, "message": "scripted"}
        headers = {} if after is None else {"Retry-After": after}
        return web.json_response(body, status=code, headers=headers)

    return scene


def stream(*chunks: bytes, cut: bool = False) -> Scene:
    """A watch that sends ``chunks`` and ends, or is cut off."""

    async def scene(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if cut:
            assert request.transport is not None
            request.transport.close()
        return response

    return scene


class Script:
    """Lists answer the next of ``lists`` (version and items), the last one for ever."""

    def __init__(self, lists: Sequence[tuple[int, list[Object]]], scenes: Sequence[Scene]) -> None:
        self.lists = list(lists)
        self.scenes = list(scenes)
        self.listed = 0
        self.watches: list[str | None] = []
        """The resourceVersion that each watch asked for."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "1":
            self.watches.append(request.query.get("resourceVersion"))
            if self.scenes:
                return await self.scenes.pop(0)(request)
            return await stream()(request)  # closes at once
        self.listed += 1
        version, items = self.lists.pop(0) if self.lists[1:] else self.lists[0]
        return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": items})

    async def __aenter__(self) -> KubeClient:
        app = web.Application()
        app.router.add_get(PATH, self.answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._client = KubeClient.for_url(f"http://{host}:{port}")
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self._runner.cleanup()
