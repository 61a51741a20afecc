import asyncio
import contextlib

import pytest

from kubeletplugin.claim_cache import ClaimCache
from kubeletplugin.claims import ClaimReader
from kubeletplugin.contract import ClaimRef
from kubeletplugin.reflector import Pace
from tests.polling import eventually

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
REF = {"resource": "pods", "name": "p", "uid": "u"}


@pytest.fixture
async def cache(server):
    client = server.client()
    made = ClaimCache(client, ClaimReader(client), Pace(relist=0.0, backoff=0.001))
    task = asyncio.create_task(made.run())
    await asyncio.wait_for(made.synced.wait(), 20)
    await eventually(lambda: made._reflector.live)
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def make(client, name: str = "c", *, allocated: bool = True, reserved: bool = True):
    exactly = {"deviceClassName": "gpu"}
    body = {
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    claim = await client.create(CLAIMS, body)
    if allocated:
        claim["status"] = {"allocation": {"devices": {"results": []}}}
        claim["status"] |= {"reservedFor": [REF]} if reserved else {}
        claim = await client.update(f"{CLAIMS}/{name}/status", claim)
    return claim, ClaimRef("default", name, claim["metadata"]["uid"])


async def seen(cache, claim):
    """Until the copy has this version of the claim."""
    metadata = claim["metadata"]

    def same() -> bool:
        found = cache._reflector.store.get(metadata["uid"])
        return found is not None and found["metadata"] == metadata

    await eventually(same)


async def test_an_allocated_and_reserved_claim_costs_no_request(server, client, cache):
    claim, ref = await make(client)
    await seen(cache, claim)
    assert await cache.get(ref) == claim
    assert server.requests["get", "resourceclaims"] == 0


@pytest.mark.parametrize(("allocated", "reserved"), [(False, False), (True, False)])
async def test_what_is_not_ready_in_the_copy_is_read(server, client, cache, allocated, reserved):
    claim, ref = await make(client, allocated=allocated, reserved=reserved)
    await seen(cache, claim)
    assert await cache.get(ref) == claim
    assert server.requests["get", "resourceclaims"] == 1


async def test_another_uid_is_read(server, client, cache):
    claim, _ = await make(client)
    await seen(cache, claim)
    assert await cache.get(ClaimRef("default", "c", "other")) == claim
    assert server.requests["get", "resourceclaims"] == 1


async def test_a_uid_under_another_name_is_read(server, client, cache):
    first, ref = await make(client)
    second, _ = await make(client, "d")
    await seen(cache, second)
    assert await cache.get(ClaimRef("default", "d", ref.uid)) == second
    assert first != second


async def test_without_a_running_watch_everything_is_read(server, client, cache):
    claim, ref = await make(client)
    await seen(cache, claim)
    server.fail(500, verb="watch", count=10_000)
    await server.pause()
    await server.resume()
    await eventually(lambda: not cache._reflector.live)
    assert await cache.get(ref) == claim
    assert server.requests["get", "resourceclaims"] == 1
