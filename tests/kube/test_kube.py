import asyncio

import pytest
from aiohttp import web

from kubeletplugin import http1, kube
from kubeletplugin.kube import ApiError, KubeClient, Unreachable, resource_of
from kubeletplugin.kubeconfig import Access, FileToken, KubeConfigError, StaticToken
from kubeletplugin.testing.apiserver.__main__ import kubeconfig
from tests.kube.script import PATH, Script, failure, stream

NODES = "/api/v1/nodes"


class Renewable:
    """Credentials whose second value is the right one."""

    def __init__(self, *values: str) -> None:
        self.values = list(values)

    async def header(self) -> str | None:
        return f"Bearer {self.values[0]}"

    async def refresh(self) -> bool:
        if len(self.values) == 1:
            return False
        self.values.pop(0)
        return True


class Broken:
    async def header(self) -> str | None:
        raise KubeConfigError("token file /t is empty")

    async def refresh(self) -> bool:
        raise KubeConfigError("plugin went away")


class BrokenLater(Broken):
    async def header(self) -> str | None:
        return "Bearer old"


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/apis/resource.k8s.io/v1/resourceslices", "resourceslices"),
        ("/apis/resource.k8s.io/v1/resourceslices/name", "resourceslices"),
        ("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims", "resourceclaims"),
        (
            "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c/status",
            "resourceclaims/status",
        ),
        ("/api/v1/nodes/n", "nodes"),
        ("/api/v1/namespaces/ns", "namespaces"),
        ("/version", "/version"),
    ],
)
def test_the_resource_of_a_path(path, resource):
    assert resource_of(path) == resource


async def test_requests_are_counted_by_verb_and_resource(server, client):
    node = await client.create(NODES, {"metadata": {"name": "n"}})
    await client.get(f"{NODES}/n")
    await client.list_pages(NODES)
    await client.update(f"{NODES}/n", node)
    await client.merge_patch(f"{NODES}/n", {"metadata": {"annotations": {"a": "b"}}})
    await client.delete(f"{NODES}/n")
    async for _ in client.watch(NODES, [("timeoutSeconds", "1")]):
        break
    verbs = ("create", "get", "list", "update", "patch", "delete", "watch")
    assert client.requests == {(verb, "nodes"): 1 for verb in verbs}
    assert client.requests == server.requests


async def test_no_answer_names_server_and_cause(server):
    client = server.client()
    await server.pause()
    with pytest.raises(Unreachable) as caught:
        await client.get(NODES)
    error = caught.value
    assert (error.code, error.reason, error.server) == (0, "Unreachable", server.url)
    assert "Cannot connect" in error.cause
    assert server.url in str(error)
    with pytest.raises(Unreachable, match="watch of /api/v1/nodes"):
        async for _ in client.watch(NODES):
            pass


async def test_an_answer_that_comes_too_late_is_none():
    async def never(_):
        await asyncio.Event().wait()

    async with Script([(1, [])], [never]) as client:
        with pytest.raises(Unreachable, match="no answer in time"):
            await client.get(PATH, [("watch", "1")], timeout=0.05)


async def test_a_quiet_watch_is_dead(monkeypatch):
    monkeypatch.setattr(kube, "QUIET_S", 0.05)

    async def quiet(request):
        await stream()(request)
        await asyncio.Event().wait()

    async with Script([(1, [])], [quiet]) as client:
        with pytest.raises(Unreachable, match="no answer in time"):
            async for _ in client.watch(PATH):
                pass


async def test_a_watch_says_when_it_is_open():
    opened: list[bool] = []
    async with Script([(1, [])], [failure(403, "Forbidden"), stream()]) as client:
        with pytest.raises(ApiError):
            async for _ in client.watch(PATH, opened=lambda: opened.append(False)):
                pass
        async for _ in client.watch(PATH, opened=lambda: opened.append(True)):
            pass
    assert opened == [True]


async def test_errors_carry_what_the_server_said(server, client):
    server.fail(429, reason="TooManyRequests", message="slow down", retry_after=7)
    with pytest.raises(ApiError) as caught:
        await client.get(f"{NODES}/n")
    error = caught.value
    assert (error.code, error.reason, error.retry_after) == (429, "TooManyRequests", 7.0)
    assert str(error) == "GET /api/v1/nodes/n: slow down (HTTP 429 TooManyRequests)"


@pytest.mark.parametrize(
    ("body", "after"), [("<html>bad gateway</html>", "later"), ('["list"]', None), ("", None)]
)
async def test_an_error_that_is_no_status_is_one_all_the_same(body, after):
    async def scene(_):
        headers = {} if after is None else {"Retry-After": after}
        return web.Response(status=502, text=body, headers=headers)

    async with Script([(1, [])], [scene]) as client:
        with pytest.raises(ApiError) as caught:
            await client.get(PATH, [("watch", "1")])
    assert (caught.value.code, caught.value.reason, caught.value.retry_after) == (502, "", None)
    assert body[:4] in str(caught.value)


async def test_an_answer_that_is_not_json_is_no_answer():
    async def scene(_):
        return web.Response(text="<html>login</html>")

    async with Script([(1, [])], [scene]) as client:
        with pytest.raises(Unreachable, match="not JSON"):
            await client.get(PATH, [("watch", "1")])


async def test_a_redirect_is_an_error_and_not_followed():
    async def scene(_):
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with Script([(1, [])], [scene]) as client:
        with pytest.raises(ApiError, match="Temporary Redirect") as caught:
            await client.get(PATH, [("watch", "1")])
    assert caught.value.code == 307


async def test_an_error_event_without_content_is_an_error():
    async with Script([(1, [])], [stream(b'{"type": "ERROR"}\n')]) as client:
        with pytest.raises(ApiError, match="error without a text") as caught:
            async for _ in client.watch(PATH):
                pass
    assert caught.value.code == 500


async def test_a_refused_token_is_renewed_once(server):
    server.tokens = {"new"}
    client = KubeClient(Access(server.url, Renewable("old", "new")))
    async with client:
        assert (await client.version())["major"] == "1"
    client = KubeClient(Access(server.url, Renewable("old", "older", "new")))
    async with client:
        with pytest.raises(ApiError) as caught:
            await client.version()
        assert caught.value.code == 401


async def test_a_token_that_cannot_be_renewed_stays_refused(server):
    server.tokens = {"new"}
    with pytest.raises(ApiError, match="Unauthorized"):
        await server.client("old").version()
    assert (await server.client("new").version())["major"] == "1"


async def test_credentials_that_cannot_be_read_are_no_answer(server):
    async with KubeClient(Access(server.url, Broken())) as client:
        with pytest.raises(Unreachable, match="token file /t is empty"):
            await client.version()
    server.tokens = {"new"}
    async with KubeClient(Access(server.url, BrokenLater())) as client:
        with pytest.raises(Unreachable, match="plugin went away"):
            await client.version()


async def test_a_rotated_token_file_is_used(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("first")
    server.tokens = {"second"}
    async with KubeClient(Access(server.url, FileToken(token))) as client:
        with pytest.raises(ApiError, match="Unauthorized"):
            await client.version()
        token.write_text("second")
        assert (await client.version())["major"] == "1"


async def test_a_burst_shares_few_connections(server, monkeypatch):
    monkeypatch.setattr(http1, "MAX_IN_FLIGHT", 3)
    client = KubeClient(Access(server.url, StaticToken(None)))
    async with client:
        await client.create(NODES, {"metadata": {"name": "n"}})
        found = await asyncio.gather(*(client.get(f"{NODES}/n") for _ in range(50)))
        assert len(found) == 50
        assert len(client._pool._wires) <= 3


async def test_closing_an_unused_client_is_harmless():
    await KubeClient.for_url("http://127.0.0.1:1").close()


async def test_a_client_from_the_environment_reads_the_kubeconfig(server, tmp_path):
    path = tmp_path / "config"
    path.write_text(kubeconfig(server.url))
    async with KubeClient.from_environment(str(path)) as client:
        assert client.server == server.url
        assert (await client.version())["major"] == "1"
