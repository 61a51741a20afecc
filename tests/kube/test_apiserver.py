"""What the embedded server can do beyond what a real one does the same way."""

import asyncio
import json
import os
import signal
import sys

import aiohttp
import pytest

from kubeletplugin.kube import ApiError, KubeClient, Unreachable
from kubeletplugin.testing.apiserver import ApiServer, storage
from kubeletplugin.testing.apiserver.storage import CompactedError, Store
from tests.polling import eventually

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
API = "/apis/resource.k8s.io/v1"


async def refused(call, code: int) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await call
    assert caught.value.code == code
    return caught.value


def node(name: str = "n") -> dict[str, object]:
    return {"metadata": {"name": name}}


async def raw(server, method: str, path: str, **options):
    url = f"{server.url}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, **options) as response,
    ):
        return response.status, await response.text()


async def test_bookmarks_carry_the_newest_version(server, client):
    _, version = await client.list_pages(NODES)
    await client.create(PODS, {"metadata": {"name": "p"}})
    async for event in client.watch(NODES, [("resourceVersion", version)]):
        assert event["type"] == "BOOKMARK"
        assert event["object"]["metadata"]["resourceVersion"] == str(server.store.version)
        break


async def test_without_asking_no_bookmark_comes(server):
    query = "watch=true&timeoutSeconds=1"
    assert await raw(server, "GET", f"{NODES}?{query}") == (200, "")


async def test_versions_from_before_a_compaction_are_gone(server, client):
    await client.create(NODES, node("a"))
    await client.create(NODES, node("b"))
    page = await client.get(NODES, [("limit", "1")])
    server.compact()
    await client.create(NODES, node("c"))
    server.compact()
    with pytest.raises(ApiError) as caught:
        async for _ in client.watch(NODES, [("resourceVersion", "1")]):
            pass
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    token = page["metadata"]["continue"]
    await refused(client.get(NODES, [("continue", token)]), 410)


def test_the_log_forgets_its_older_half(monkeypatch):
    monkeypatch.setattr(storage, "_LOG_LIMIT", 10)
    store = Store()
    for n in range(12):
        store.put(("nodes", "", "n"), {"metadata": {"name": "n"}, "n": n})
    with pytest.raises(CompactedError):
        store.changes("nodes", 1)
    assert [change.after["n"] for change in store.changes("nodes", 7)] == [6, 7, 8, 9, 10, 11]
    assert [*store.changes("pods", 7)] == []


async def test_an_object_that_enters_or_leaves_a_selection_is_added_or_deleted(client):
    query = [("fieldSelector", "spec.nodeName=n"), ("resourceVersion", "1")]
    pod = await client.create(PODS, {"metadata": {"name": "p"}, "spec": {}})
    path = f"{PODS}/p"
    pod = await client.update(path, {**pod, "spec": {"nodeName": "n"}})
    pod = await client.update(path, {**pod, "spec": {"nodeName": "n", "x": 1}})
    await client.update(path, {**pod, "spec": {"nodeName": "m"}})
    await client.delete(path)
    await client.create(PODS, {"metadata": {"name": "q"}, "spec": {"nodeName": "n"}})
    await client.delete(f"{PODS}/q")
    kinds = []
    async for event in client.watch("/api/v1/pods", query):
        kinds.append(event["type"])
        if len(kinds) == 5:
            break
    assert kinds == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]


async def test_a_watch_of_one_namespace_hears_of_that_alone(client):
    await client.create("/api/v1/namespaces/other/pods", {"metadata": {"name": "a"}})
    await client.create(PODS, {"metadata": {"name": "b"}})
    async for event in client.watch(PODS, [("resourceVersion", "1")]):
        assert event["object"]["metadata"]["name"] == "b"
        break


async def test_a_pause_cuts_watches_and_refuses_connections(server, client):
    await client.create(NODES, node())

    async def follow():
        async for _ in client.watch(NODES, [("resourceVersion", "0")]):
            pass

    task = asyncio.create_task(follow())
    await eventually(lambda: server.requests["watch", "nodes"] == 1)
    await server.pause()
    with pytest.raises(Unreachable):
        await asyncio.wait_for(task, 20)
    with pytest.raises(Unreachable):
        await client.get(f"{NODES}/n")
    await server.resume()
    assert (await client.get(f"{NODES}/n"))["metadata"]["name"] == "n"


async def test_faults_hit_what_they_name(server, client):
    fault = server.fail(503, verb="create", resource="nodes", count=2)
    await client.list_pages(NODES)
    await refused(client.create(NODES, node()), 503)
    assert fault.count == 1
    await client.create(PODS, {"metadata": {"name": "p"}})
    fault.count = 0
    await client.create(NODES, node())
    server.fail(500, after=True)
    await refused(client.create(NODES, node("late")), 500)
    assert [found["metadata"]["name"] for found in server.objects("nodes")] == ["late", "n"]


async def test_dry_runs_are_no_writes(server, client):
    await client.create(NODES, node(), [("dryRun", "All")])
    assert (server.requests, server.writes) == ({("create", "nodes"): 1}, {})


async def test_it_says_that_it_is_ready(server):
    assert await raw(server, "GET", "/readyz") == (200, "ok")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/apis", 404),
        ("GET", "/api/v1", 404),
        ("GET", "/apis/resource.k8s.io/v1beta9/resourceslices", 404),
        ("GET", f"{API}/resourceclaims/without-namespace", 404),
        ("GET", f"{API}/resourceslices/s/scale", 404),
        ("GET", f"{NODES}?labelSelector=a", 400),
        ("GET", f"{NODES}?fieldSelector=metadata.name", 400),
        ("GET", f"{NODES}/n?watch=1", 400),
        ("POST", NODES, 422),
        ("OPTIONS", NODES, 415),
    ],
)
async def test_what_it_does_not_serve_is_refused(server, method, path, code):
    assert (await raw(server, method, path))[0] == code


@pytest.mark.parametrize("body", ["{", "[1]"])
async def test_a_body_must_be_an_object(server, body):
    status, text = await raw(server, "POST", NODES, data=body)
    assert (status, json.loads(text)["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize("kind", ["application/json-patch+json", "text/plain"])
async def test_other_patches_are_not_taken(server, kind):
    headers = {"Content-Type": kind}
    assert (await raw(server, "PATCH", f"{NODES}/n", data="{}", headers=headers))[0] == 415


async def test_another_namespace_in_the_body_is_refused(client):
    body = {"metadata": {"name": "p", "namespace": "other"}}
    await refused(client.create(PODS, body), 400)


async def test_a_node_and_its_status_are_written_apart(client):
    await client.create(NODES, node())
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    found = await client.merge_patch(f"{NODES}/n/status", {"status": status})
    assert found["status"] == status
    found = await client.merge_patch(
        f"{NODES}/n", {"status": None, "spec": {"unschedulable": True}}
    )
    assert (found["status"], found["spec"]) == (status, {"unschedulable": True})
    found = await client.merge_patch(f"{NODES}/n/status", {"status": None})
    assert "status" not in found


async def test_an_apply_creates_what_is_not_there_and_guards_with_a_version(client):
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"a": 1}}
    first = await client.apply(f"{NODES}/n", body, field_manager="m")
    assert first["spec"] == {"a": 1}
    second = await client.apply(f"{NODES}/n", {**body, "spec": {"b": [1]}}, field_manager="m")
    assert second["spec"] == {"b": [1]}
    body["metadata"] = first["metadata"]
    await refused(client.apply(f"{NODES}/n", body, field_manager="m"), 409)


async def test_a_dry_apply_leaves_no_owner(server, client):
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"a": 1}}
    await client.create(NODES, {"metadata": {"name": "n"}})
    path = f"{NODES}/n?fieldManager=m&dryRun=All"
    headers = {"Content-Type": "application/apply-patch+yaml"}
    status, _ = await raw(server, "PATCH", path, data=json.dumps(body), headers=headers)
    assert status == 200
    other = {**body, "spec": {"a": 2}}
    assert (await client.apply(f"{NODES}/n", other, field_manager="x"))["spec"] == {"a": 2}


async def test_an_apply_without_kind_is_refused(client):
    await refused(client.apply(f"{NODES}/n", node(), field_manager="m"), 400)


async def test_a_deletion_waits_for_the_finalizer_once(server, client):
    await client.create(NODES, {"metadata": {"name": "n", "finalizers": ["a/b"]}})
    first = await client.delete(f"{NODES}/n")
    second = await client.delete(f"{NODES}/n")
    assert first == second
    events = [change.kind for change in server.store.changes("nodes", 1)]
    assert events == ["ADDED", "MODIFIED"]


@pytest.mark.parametrize("version", ["v1.34.4", "v1.35.4"])
async def test_an_old_server_wants_counters_and_devices_together(version):
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
        "sharedCounters": [{"name": f"s{n}", "counters": {"a": {"value": "1"}}} for n in range(9)],
    }
    async with ApiServer(version=version) as server:
        create = server.client().create(
            f"{API}/resourceslices", {"metadata": {"name": "s"}, "spec": spec}
        )
        if version == "v1.34.4":
            assert await create
        else:
            await refused(create, 422)


async def test_a_feature_in_use_is_kept_even_where_its_gate_is_off():
    taint = {"key": "a/b", "effect": "NoSchedule"}
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "taints": [taint]}],
    }
    async with ApiServer() as server:
        client = server.client()
        stored = await client.create(
            f"{API}/resourceslices", {"metadata": {"name": "s"}, "spec": spec}
        )
        server._handlers._operations._dropped = frozenset({"taints"})
        stored["spec"]["devices"].append({"name": "gpu-1", "taints": [taint]})
        stored = await client.update(f"{API}/resourceslices/s", stored)
        assert all(device["taints"] for device in stored["spec"]["devices"])


POLICIES = [
    ({"default": "1", "validValues": ["1"], "validRange": {"min": "1"}}, "only one of"),
    ({"validValues": ["1"]}, "Required value"),
    ({"default": "1", "validValues": [str(n) for n in range(11)]}, "at most 10"),
    ({"default": "1", "validValues": ["1", "9"]}, "larger than capacity value"),
    ({"default": "2", "validValues": ["1"]}, "default must be one of"),
    ({"default": "x", "validValues": ["1"]}, "not a quantity"),
    ({"default": "1", "validRange": {"max": "2"}}, "validRange.min"),
    ({"default": "9", "validRange": {"min": "9"}}, "not between 0 and 8"),
    ({"default": "2", "validRange": {"min": "2", "max": "9"}}, "not between min and 8"),
    ({"default": "1", "validRange": {"min": "1", "step": "0"}}, "greater than zero"),
    ({"default": "2", "validRange": {"min": "1", "step": "2"}}, "whole steps"),
    ({"default": "1", "validRange": {"min": "1", "max": "4", "step": "2"}}, "whole steps"),
]


@pytest.mark.parametrize(("policy", "text"), POLICIES)
async def test_request_policies_are_checked(client, policy, text):
    capacity = {"memory": {"value": "8", "requestPolicy": policy}}
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": capacity}
    error = await refused(client.create(f"{API}/resourceslices", _slice(device)), 422)
    assert text in error.message


@pytest.mark.parametrize(
    "device",
    [
        {"name": "gpu-0", "capacity": {"memory": {"value": "x", "requestPolicy": {}}}},
        {"name": "gpu-0", "capacity": {"a-b": {"value": "1"}}},
        {"name": "gpu-0", "attributes": {"a_b/c": {"int": 1}}},
        {"name": "gpu-0", "taints": [{"key": "a_b/c", "effect": "None"}]},
        {"name": "gpu-0", "taints": [{"key": "a", "value": "a b", "effect": "None"}]},
    ],
)
async def test_odd_devices_are_refused(client, device):
    await refused(client.create(f"{API}/resourceslices", _slice(device)), 422)


def _slice(*devices: object) -> dict[str, object]:
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    return {"metadata": {"name": "s"}, "spec": spec}


async def test_claims_have_at_most_32_requests(client):
    exactly = {"deviceClassName": "gpu"}
    requests = [{"name": f"r{n}", "exactly": exactly} for n in range(33)]
    body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}
    await refused(client.create(f"{API}/namespaces/default/resourceclaims", body), 422)


async def test_alternatives_get_defaults_and_all_gets_no_count(client):
    parts = [{"name": "a", "deviceClassName": "gpu"}]
    every = {"deviceClassName": "gpu", "allocationMode": "All"}
    requests = [{"name": "one", "firstAvailable": parts}, {"name": "two", "exactly": every}]
    body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}
    stored = await client.create(f"{API}/namespaces/default/resourceclaims", body)
    one, two = stored["spec"]["devices"]["requests"]
    assert one["firstAvailable"][0]["count"] == 1
    assert two["exactly"] == every


async def test_it_runs_as_a_process(tmp_path):
    path = tmp_path / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kubeletplugin.testing.apiserver",
        "--kubeconfig-out",
        str(path),
        "--version",
        "v1.36.3",
        "--drop-features",
        "taints,sharing",
        stdout=asyncio.subprocess.PIPE,
        cwd=os.getcwd(),
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with KubeClient.from_environment(str(path)) as client:
            assert client.server == url
            assert (await client.version())["gitVersion"] == "v1.36.3"
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_server_that_never_started_can_be_stopped():
    await ApiServer().stop()
