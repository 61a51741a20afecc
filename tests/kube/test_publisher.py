"""The publisher against the embedded API server: what is stored, and how many calls it took."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from kubeletplugin.contract import DesiredPool, DesiredSlice, Object
from kubeletplugin.plan_publish import Identity
from kubeletplugin.probe import COUNTERS, SHARING, SLICES, TAINTS
from kubeletplugin.publish_checks import PublishError
from kubeletplugin.publish_clock import Timing
from kubeletplugin.publisher import Publisher
from kubeletplugin.testing.apiserver import ApiServer
from tests.polling import eventually

ME = Identity("gpu.example.com", "node-1")
FAST = Timing(
    relist_s=0.2, debounce_s=0.02, debounce_max_s=0.1, backoff_s=0.01, backoff_max_s=0.05
)
SLOW_RELIST = replace(FAST, relist_s=3600.0)
MINE = f"spec.driver={ME.driver},spec.nodeName={ME.node_name}"


def part(key: str, *devices: Object | str) -> DesiredSlice:
    made = [{"name": one} if isinstance(one, str) else one for one in devices]
    return DesiredSlice(key, tuple(made))


def pool(*slices: DesiredSlice) -> DesiredPool:
    return DesiredPool("node-1", slices)


TWO = pool(part("00-cards", "gpu-0", "gpu-1"), part("01-mig", "mig-0"))


@contextlib.asynccontextmanager
async def running(server: ApiServer, timing: Timing = SLOW_RELIST, **options: Any):
    publisher = Publisher(server.client(), ME, timing=timing, **options)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        await publisher.stop()
        assert task.done()


async def published(publisher: Publisher, desired: DesiredPool = TWO) -> None:
    publisher.set_pool(desired)
    publisher.set_registered(True)
    await asyncio.wait_for(publisher.published.wait(), 20)


def devices(server: ApiServer) -> list[list[str]]:
    return [
        [device["name"] for device in found["spec"].get("devices", [])]
        for found in server.objects("resourceslices")
    ]


async def looked(server: ApiServer, times: int = 2) -> None:
    """``times`` more lists by the publisher."""
    goal = server.requests["list", "resourceslices"] + times
    await eventually(lambda: server.requests["list", "resourceslices"] >= goal, "lists")


async def add_node(client):
    body = {"metadata": {"name": "node-1"}}
    return await client.create("/api/v1/nodes", body)


async def test_a_pool_is_published_with_the_node_as_owner(server, client):
    node = await add_node(client)
    async with running(server) as publisher:
        await published(publisher)
        assert devices(server) == [["gpu-0", "gpu-1"], ["mig-0"]]
        for found in server.objects("resourceslices"):
            assert found["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
        assert publisher.status.published
        assert (publisher.status.slices, publisher.status.devices) == (2, 3)
        assert (publisher.status.generation, publisher.status.error) == (1, None)
    assert len(server.objects("resourceslices")) == 2  # they stay
    assert server.writes == {("create", "resourceslices"): 2, ("create", "nodes"): 1}


async def test_nothing_is_published_before_the_kubelet_knows_the_plugin(server):
    async with running(server, FAST) as publisher:
        publisher.set_pool(TWO)
        publisher.resync()
        await asyncio.sleep(0)
        assert not server.writes
        publisher.set_registered(True)
        await eventually(publisher.published.is_set)
    assert publisher.status.generation == 1


async def test_nothing_is_put_back_after_the_kubelet_lost_the_plugin(server, client):
    async with running(server, FAST) as publisher:
        await published(publisher)
        publisher.set_registered(False)
        before = server.requests["list", "resourceslices"]
        await client.delete(SLICES, [("fieldSelector", MINE)])
        await asyncio.sleep(0.3)
        assert server.requests["list", "resourceslices"] <= before + 1
        assert not server.objects("resourceslices")
        publisher.set_registered(True)
        await eventually(lambda: len(server.objects("resourceslices")) == 2)


async def test_the_steady_state_writes_nothing(server):
    async with running(server, replace(FAST, relist_s=0.02)) as publisher:
        await published(publisher)
        before = dict(server.writes)
        await looked(server, 10)
        publisher.set_pool(pool(*TWO.slices))  # equal
        publisher.resync()
        await looked(server)
        assert dict(server.writes) == before


async def test_a_restart_adopts_what_is_there_without_a_write(server):
    async with running(server) as publisher:
        await published(publisher)
    server.writes.clear()
    async with running(server, replace(FAST, relist_s=0.02)) as publisher:
        await published(publisher)
        await looked(server, 5)
        assert publisher.status.generation == 1
    assert not server.writes


async def test_what_the_server_rewrites_is_no_reason_to_write(server):
    taint = {"key": "example.com/lost", "effect": "NoSchedule"}
    device = {"name": "gpu-0", "capacity": {"memory": {"value": "1024Mi"}}, "taints": [taint]}
    async with running(server, replace(FAST, relist_s=0.02)) as publisher:
        await published(publisher, pool(part("a", device)))
        await looked(server, 5)
    assert server.writes == {("create", "resourceslices"): 1}


async def test_a_changed_pool_is_published_at_once(server):
    async with running(server) as publisher:
        await published(publisher)
        publisher.set_pool(pool(TWO.slices[0], part("01-mig", "mig-1")))
        assert not publisher.status.published
        await eventually(publisher.published.is_set)
        assert devices(server) == [["gpu-0", "gpu-1"], ["mig-1"]]
        assert publisher.status.generation == 1
    assert server.writes == {("create", "resourceslices"): 2, ("update", "resourceslices"): 1}


async def test_a_wrong_pool_is_refused_and_the_old_one_stays(server):
    async with running(server, FAST) as publisher:
        await published(publisher)
        with pytest.raises(PublishError):
            publisher.set_pool(pool(part("a", "x", "x")))
        publisher.resync()
        await looked(server)
        assert publisher.status.published
        assert devices(server) == [["gpu-0", "gpu-1"], ["mig-0"]]


async def test_slices_the_kubelet_deleted_come_back_soon(server, client):
    async with running(server) as publisher:
        await published(publisher)
        await client.delete(SLICES, [("fieldSelector", MINE)])
        await eventually(lambda: len(server.objects("resourceslices")) == 2)
        await eventually(publisher.published.is_set)
        assert devices(server) == [["gpu-0", "gpu-1"], ["mig-0"]]


async def test_a_change_by_somebody_else_is_undone(server, client):
    async with running(server) as publisher:
        await published(publisher)
        found = server.objects("resourceslices")[1]
        path = f"{SLICES}/{found['metadata']['name']}"
        await client.update(path, {**found, "spec": {**found["spec"], "devices": []}})
        await eventually(lambda: devices(server)[1] == ["mig-0"])


async def test_a_foreign_slice_of_the_node_is_removed(server, client):
    foreign: Object = {
        "metadata": {"name": "foreign"},
        "spec": {
            "driver": ME.driver,
            "nodeName": ME.node_name,
            "pool": {"name": "old", "generation": 3, "resourceSliceCount": 1},
        },
    }
    async with running(server) as publisher:
        await published(publisher)
        await client.create(SLICES, foreign)
        await eventually(lambda: len(server.objects("resourceslices")) == 2)
        await client.create(SLICES, {**foreign, "spec": {**foreign["spec"], "nodeName": "node-2"}})
        publisher.resync()
        await looked(server, 1)
    assert len(server.objects("resourceslices")) == 3  # another node's stays


async def test_the_relist_finds_what_the_watch_did_not_tell(server, client):
    async with running(server, FAST) as publisher:
        watch = server.fail(500, verb="watch", count=10_000)
        await published(publisher)
        await client.delete(SLICES, [("fieldSelector", MINE)])
        await eventually(lambda: len(server.objects("resourceslices")) == 2)
        watch.count = 0


async def test_a_node_made_anew_owns_what_is_made_anew(server, client):
    first = await add_node(client)
    async with running(server) as publisher:
        await published(publisher)
        await client.delete("/api/v1/nodes/node-1")
        second = await add_node(client)
        await client.delete(SLICES, [("fieldSelector", MINE)])
        await eventually(lambda: len(server.objects("resourceslices")) == 2)
    uids = {
        found["metadata"]["ownerReferences"][0]["uid"]
        for found in server.objects("resourceslices")
    }
    assert uids == {second["metadata"]["uid"]} != {first["metadata"]["uid"]}


async def test_an_error_reading_the_node_delays_but_a_missing_one_does_not(server):
    server.fail(500, verb="get", resource="nodes", count=2)
    async with running(server) as publisher:
        await published(publisher)
        assert "ownerReferences" not in server.objects("resourceslices")[0]["metadata"]
    assert server.requests["get", "nodes"] == 3


@pytest.mark.parametrize(
    ("code", "verb"), [(500, "create"), (503, "list"), (429, "create"), (403, "create")]
)
async def test_errors_are_tried_again_until_it_works(server, code, verb):
    told: list[str] = []
    server.fail(code, verb=verb, resource="resourceslices", count=4, reason="Test")
    async with running(server, on_error=told.append) as publisher:
        await published(publisher)
        assert publisher.last_error is None
    assert told
    assert devices(server) == [["gpu-0", "gpu-1"], ["mig-0"]]


async def test_a_write_that_took_effect_but_was_answered_with_an_error_is_found(server):
    server.fail(504, verb="create", resource="resourceslices", after=True)
    async with running(server) as publisher:
        await published(publisher)
    assert devices(server) == [["gpu-0", "gpu-1"], ["mig-0"]]


async def test_retry_after_is_waited_for(server):
    server.fail(429, verb="create", reason="TooManyRequests", retry_after=3600)
    async with running(server) as publisher:
        publisher.set_pool(TWO)
        publisher.set_registered(True)
        await eventually(lambda: publisher.last_error is not None)
        await asyncio.sleep(0.2)
        assert server.writes["create", "resourceslices"] == 1
        publisher.resync()
        await eventually(publisher.published.is_set)


async def test_a_refusal_names_rbac_and_policy(server):
    server.fail(403, verb="create", reason="Forbidden", count=10_000)
    async with running(server) as publisher:
        publisher.set_pool(TWO)
        publisher.set_registered(True)
        await eventually(lambda: publisher.last_error is not None)
        assert "RBAC or an admission policy" in str(publisher.last_error)
        assert not publisher.status.published


async def test_invalid_content_is_not_sent_again_until_it_changes(server, client):
    bad = {"name": "gpu-0", "attributes": {"text": {"string": "x" * 65}}}
    async with running(server, FAST) as publisher:
        publisher.set_pool(pool(part("a", bad)))
        publisher.set_registered(True)
        await eventually(lambda: publisher.last_error is not None)
        assert "may not be more than 64 bytes" in str(publisher.last_error)
        foreign = {
            "metadata": {"name": "f"},
            "spec": {
                "driver": ME.driver,
                "nodeName": ME.node_name,
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            },
        }
        await client.create(SLICES, foreign)  # wakes the watch, not the publisher
        await asyncio.sleep(0.4)
        assert server.writes["create", "resourceslices"] == 2
        publisher.set_pool(pool(part("a", "gpu-0")))
        await eventually(publisher.published.is_set)
    assert devices(server) == [["gpu-0"]]


async def test_a_conflict_is_looked_at_again_at_once(server):
    async with running(server, replace(SLOW_RELIST, backoff_s=3600.0)) as publisher:
        await published(publisher)
        server.fail(409, verb="update", reason="Conflict")
        publisher.set_pool(pool(TWO.slices[0], part("01-mig", "mig-1")))
        await eventually(publisher.published.is_set)
    assert devices(server)[1] == ["mig-1"]


async def test_conflicts_without_end_are_slowed_down(server):
    server.fail(409, verb="create", reason="AlreadyExists", count=5)
    async with running(server) as publisher:
        publisher.set_pool(TWO)
        publisher.set_registered(True)
        await eventually(lambda: publisher.last_error is not None)
        assert "belongs to another node or driver" in str(publisher.last_error)
        await eventually(publisher.published.is_set)


async def test_a_slice_gone_before_its_deletion_is_fine(server):
    async with running(server) as publisher:
        await published(publisher)
        server.fail(404, verb="delete", reason="NotFound", after=True)
        publisher.set_pool(pool(TWO.slices[0]))
        await eventually(publisher.published.is_set)
    assert devices(server) == [["gpu-0", "gpu-1"]]


async def test_a_deletion_that_fails_is_tried_again(server):
    async with running(server) as publisher:
        await published(publisher)
        server.fail(500, verb="delete")
        publisher.set_pool(pool(TWO.slices[0]))
        await eventually(publisher.published.is_set)
    assert devices(server) == [["gpu-0", "gpu-1"]]


async def test_an_outage_is_survived(server):
    async with running(server, FAST) as publisher:
        await published(publisher)
        await server.pause()
        publisher.set_pool(pool(part("00-cards", "gpu-9")))
        await eventually(lambda: publisher.last_error is not None)
        assert server.url in str(publisher.last_error)
        await server.resume()
        await eventually(publisher.published.is_set)
        assert devices(server) == [["gpu-9"]]
        server.compact()
        await server.pause()
        await server.resume()
        await looked(server, 3)
        assert publisher.last_error is None


TAINTED = {"name": "gpu-0", "taints": [{"key": "example.com/lost", "effect": "NoSchedule"}]}
SHARED = {
    "name": "gpu-0",
    "allowMultipleAllocations": True,
    "capacity": {"memory": {"value": "2", "requestPolicy": {"default": "1"}}},
}
COUNTED = pool(
    DesiredSlice(
        "00-counters",
        shared_counters=({"name": "gpu-0", "counters": {"a": {"value": "1"}}},),
    ),
    part(
        "10-mig",
        {
            "name": "mig-0",
            "consumesCounters": [{"counterSet": "gpu-0", "counters": {"a": {"value": "1"}}}],
        },
    ),
)


@pytest.mark.parametrize(
    ("feature", "desired"),
    [
        (TAINTS, pool(part("a", TAINTED))),
        (SHARING, pool(part("a", SHARED))),
        (COUNTERS, COUNTED),
    ],
)
async def test_dropped_fields_are_told_and_do_not_loop(feature, desired):
    told: list[frozenset[str]] = []
    timing = replace(FAST, relist_s=0.02)
    async with (
        ApiServer(drop_features={feature}) as server,
        running(server, timing, on_dropped=told.append) as publisher,
    ):
        await published(publisher, desired)
        before = dict(server.writes)
        await looked(server, 5)
        assert dict(server.writes) == before
        assert set(told) == {frozenset({feature})}
        publisher.set_pool(pool(part("a", "plain")))
        await eventually(publisher.published.is_set)
        assert devices(server) == [["plain"]]


async def test_a_driver_that_changes_its_pool_when_told_publishes_nothing_more_of_the_old():
    async with ApiServer(drop_features={COUNTERS}) as server:
        plain = pool(part("00-counters", "gpu-0"))
        publishers: list[Publisher] = []

        def replace_it(features: frozenset[str]) -> None:
            publishers[0].set_pool(plain)

        async with running(server, on_dropped=replace_it) as publisher:
            publishers.append(publisher)
            publisher.set_pool(COUNTED)
            publisher.set_registered(True)
            await eventually(lambda: devices(server) == [["gpu-0"]])
            await eventually(publisher.published.is_set)
            assert server.writes["create", "resourceslices"] == 1  # "10-mig" was never written
            publisher.set_pool(COUNTED)  # the same while updating
            await eventually(lambda: server.writes["update", "resourceslices"] >= 2)


async def test_an_unexplained_difference_is_accepted_too(server, monkeypatch):
    told: list[frozenset[str]] = []
    monkeypatch.setattr(
        "kubeletplugin.testing.apiserver.resources._canonicalize",
        lambda spec: [device.pop("attributes", None) for device in spec.get("devices", [])],
    )
    odd = {"name": "gpu-0", "attributes": {"a": {"int": 1}}}
    async with running(server, replace(FAST, relist_s=0.02), on_dropped=told.append) as publisher:
        await published(publisher, pool(part("a", odd)))
        await looked(server, 5)
    assert told == [frozenset()]
    assert server.writes == {("create", "resourceslices"): 1}


async def test_two_who_fight_slow_down(server, client):
    timing = replace(SLOW_RELIST, debounce_s=0.001, debounce_max_s=0.004)
    async with running(server, timing) as publisher:
        await published(publisher)
        for _ in range(4):
            await client.delete(SLICES, [("fieldSelector", MINE)])
            await eventually(lambda: len(server.objects("resourceslices")) == 2)
            await eventually(publisher.published.is_set)


async def test_stop_without_a_run_is_harmless(server):
    publisher = Publisher(server.client(), ME)
    await publisher.stop()
    assert publisher.status == publisher.status
    assert not publisher.status.published


async def test_a_pool_that_changes_during_a_write_is_not_taken_for_dropped_fields(
    server, monkeypatch
):
    dropped: list[frozenset[str]] = []
    async with running(server, on_dropped=dropped.append) as publisher:
        await published(publisher)
        newest = pool(part("00-cards", "gpu-1"), part("01-mig", "mig-0"))
        update = publisher._client.update

        async def overtaken(path: str, found: Object) -> Object:
            publisher.set_pool(newest)
            stored: Object = await update(path, found)
            return stored

        monkeypatch.setattr(publisher._client, "update", overtaken)
        publisher.set_pool(pool(part("00-cards", "gpu-0"), part("01-mig", "mig-0")))
        await eventually(lambda: devices(server)[0] == ["gpu-1"], "the newest pool")
    assert dropped == []
