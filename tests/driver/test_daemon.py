"""A node plugin that serves: kubelet, API server, cards and policy around it."""

import asyncio
import json
import urllib.request

import pytest

from driver.daemon import NodeDaemon
from driver.hw.nvml import Nvml
from driver.sim import control
from kubeletplugin.testing.apiserver import ApiServer
from kubeletplugin.testing.kubelet import register
from tests.driver.cluster import (
    allocate,
    create_claim,
    devices_told,
    events,
    published,
)
from tests.driver.machine import DRIVER, NODE
from tests.driver.nodes import free_port, prepare, settings_of, unprepare
from tests.polling import eventually


async def fetch(port, path):
    def call():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(call)


async def test_a_claim_goes_from_the_kubelets_call_to_its_status_and_back(machine, api, node):
    one = await node()
    plugin = await one.registered()
    await eventually(lambda: published(api), "the cards are published")
    assert published(api) == {machine.device(0): [], machine.device(1): []}
    claim = await create_claim(api.client(), "one", machine.device(0))
    answer = await prepare(plugin, claim)
    assert answer.error == ""
    assert answer.cdi_device_ids == (f"{DRIVER}/claim={claim['metadata']['uid']}-0",)
    assert await prepare(plugin, claim) == answer
    await eventually(lambda: devices_told(api, "one"), "the status is written")
    assert await unprepare(plugin, claim) == ""
    assert list(one.daemon.settings.cdi_dir.glob("*.json")) == []
    assert one.daemon.journal.all() == ()
    assert api.writes["patch", "resourceclaims/status"] == 1


async def test_probes_and_metrics_answer(machine, api, node):
    port = free_port()
    one = await node(http_address=f"127.0.0.1:{port}")
    plugin = await one.registered()
    await eventually(lambda: one.daemon.ready().ok)
    assert json.loads(await fetch(port, "/healthz"))["ok"]
    assert json.loads(await fetch(port, "/readyz")) == {"ok": True, "reasons": []}
    claim = await create_claim(api.client(), "one", machine.device(0))
    await prepare(plugin, claim)
    control.lose(machine.root, 1)
    await eventually(lambda: any(each.lost for each in one.daemon.cards.health.values()))
    text = await fetch(port, "/metrics")
    assert 'aliquot_claim_operation_seconds_count{method="prepare"} 1.0' in text
    assert "aliquot_prepared_claims 1.0" in text
    assert "aliquot_damaged_records 0.0" in text
    assert 'aliquot_gpus{state="healthy"} 1.0' in text
    assert 'aliquot_gpus{state="unhealthy"} 1.0' in text


async def test_who_is_not_registered_or_published_is_not_ready(api, node):
    one = await node()
    probe = one.daemon.ready()
    assert not probe.ok
    assert "not registered with the kubelet: serving" in probe.reasons
    assert "ResourceSlices: not published yet" in probe.reasons
    await one.registered()
    await eventually(lambda: one.daemon.ready().ok)


async def test_readiness_tells_what_keeps_the_cards_from_being_published(api, node):
    fault = api.fail(403, verb="list", resource="resourceslices", count=10_000, reason="Forbidden")
    one = await node()
    await one.registered()
    await eventually(lambda: "RBAC" in str(one.daemon.ready().reasons))
    fault.count = 0
    await eventually(lambda: one.daemon.ready().ok)


async def test_a_refusal_of_the_kubelet_is_the_reason(node):
    one = await node()
    (path,) = (one.daemon.settings.kubelet_root / "plugins_registry").glob("*.sock")
    await register(path, refuse="name is taken")
    assert "name is taken" in one.daemon.ready().reasons


# Cards -----------------------------------------------------------------------------------


async def test_a_lost_card_is_tainted_told_and_back(machine, api, node):
    one = await node()
    plugin = await one.registered()
    await eventually(lambda: published(api))
    control.lose(machine.root, 0)
    await eventually(lambda: published(api)[machine.device(0)] == ["lost"])
    async with plugin:
        stream = plugin.health()
        async for health in stream:
            if health["node-1", machine.device(0)] == "UNHEALTHY":
                break
        await stream.aclose()
    control.restore(machine.root, 0)
    await eventually(lambda: published(api)[machine.device(0)] == [])
    await eventually(lambda: "GPUHealthy" in events(api))
    assert machine.uuids[0] in events(api)["GPUUnhealthy"][0]


async def test_an_xid_taints_its_card(machine, api, node):
    one = await node()
    await one.registered()
    await eventually(lambda: one.daemon.watch._source._events and published(api))
    control.xid(machine.root, 1, 79)
    await eventually(lambda: "XID 79" in str(events(api).get("GPUUnhealthy")))


async def test_without_nvml_the_node_serves_and_says_so(machine, api, node):
    control.set_library(machine.root, "missing")
    one = await node()
    await one.registered()
    await eventually(lambda: api.objects("resourceslices"), "an empty pool is published")
    assert published(api) == {}
    (reason,) = one.daemon.ready().reasons
    assert "libnvidia-ml.so.1 was not found" in reason
    control.set_library(machine.root, "ok")
    await eventually(lambda: len(published(api)) == 2)
    assert one.daemon.ready().ok


# Feature gates ---------------------------------------------------------------------------


async def test_without_the_taints_gate_faulty_cards_are_withdrawn(machine, node):
    async with ApiServer(drop_features=["taints"], bookmark_s=0.05) as old:
        one = await node(at=old)
        await one.registered()
        await eventually(lambda: len(published(old)) == 2)
        await eventually(lambda: "FeatureGateMissing" in events(old))
        assert "DRADeviceTaints" in events(old)["FeatureGateMissing"][0]
        control.lose(machine.root, 0)
        await eventually(lambda: list(published(old)) == [machine.device(1)])
        control.restore(machine.root, 0)
        await eventually(lambda: len(published(old)) == 2)
        await one.stop()


async def test_fields_that_are_dropped_later_are_noticed(machine, api, node):
    one = await node()
    await one.registered()
    await eventually(lambda: len(published(api)) == 2)
    api._handlers._operations._dropped = frozenset({"taints"})  # an API server of another version
    control.lose(machine.root, 0)
    await eventually(lambda: list(published(api)) == [machine.device(1)])
    await eventually(lambda: "FeatureGateMissing" in events(api))


async def test_what_the_driver_does_not_use_may_be_dropped(api, node):
    one = await node()
    await eventually(lambda: one.daemon._features is not None)
    before = one.daemon._features
    one.daemon._on_dropped(frozenset())
    assert one.daemon._features == before


# The API server away ---------------------------------------------------------------------


async def test_a_node_serves_and_publishes_once_the_api_server_is_there(api, node, caplog):
    await api.pause()
    one = await node()
    await one.registered()
    await eventually(lambda: "cannot tell yet what the cluster supports" in caplog.text)
    (reason,) = one.daemon.ready().reasons
    assert reason.startswith(f"ResourceSlices: API server {api.url}: ")
    await api.resume()
    await eventually(lambda: one.daemon.ready().ok)
    assert len(published(api)) == 2


async def test_a_refused_look_at_the_cluster_is_logged_once_and_keeps_the_node_unready(
    api, node, caplog, monkeypatch
):
    monkeypatch.setattr("driver.daemon._PROBE_RETRY_S", 0.01)
    fault = api.fail(
        403, verb="create", resource="resourceslices", count=100_000, reason="Forbidden"
    )
    one = await node()
    await one.registered()
    await eventually(lambda: api.requests["create", "resourceslices"] > 3)
    assert "Forbidden" in str(one.daemon.ready().reasons)
    assert caplog.text.count("cannot tell yet what the cluster supports") == 1
    fault.count = 0
    await eventually(lambda: one.daemon.ready().ok)


async def test_a_prepared_claim_is_answered_without_the_api_server(machine, api, node):
    one = await node()
    plugin = await one.registered()
    claim = await create_claim(api.client(), "one", machine.device(0))
    answer = await prepare(plugin, claim)
    await api.pause()
    assert await prepare(plugin, claim) == answer
    await api.resume()


async def test_claims_may_come_from_a_watch(machine, api, node):
    one = await node(claim_cache=True, reconcile_interval_s=60.0)  # which reads claims itself
    plugin = await one.registered()
    claim = await create_claim(api.client(), "one", machine.device(0))
    uid = claim["metadata"]["uid"]
    await eventually(lambda: uid in one.daemon._claims._reflector.store)
    before = api.requests["get", "resourceclaims"]
    assert (await prepare(plugin, claim)).error == ""
    assert api.requests["get", "resourceclaims"] == before
    assert len(one.daemon.journal.all()) == 1


# The policy file -------------------------------------------------------------------------


async def test_a_policy_that_changes_is_put_in_force_and_a_bad_one_told(
    machine, api, node, tmp_path
):
    path = tmp_path / "policy.yaml"
    rest = "- select: {all: true}\n  modes: [gpu]\n"
    path.write_text(f"gpus:\n{rest}")
    one = await node(policy_file=path)
    plugin = await one.registered()
    await eventually(lambda: len(published(api)) == 2)
    claim = await create_claim(api.client(), "one", machine.device(0))
    await prepare(plugin, claim)
    path.write_text(f"gpus:\n- select: {{uuid: {machine.uuids[0]}}}\n  modes: []\n{rest}")
    await eventually(lambda: published(api)[machine.device(0)] == ["policy"])
    await unprepare(plugin, claim)
    await eventually(lambda: list(published(api)) == [machine.device(1)])
    path.write_text("taintEffect: Maybe\nwings: 2\n")
    await eventually(lambda: "PolicyInvalid" in events(api))
    (note,) = events(api)["PolicyInvalid"]
    assert "taintEffect" in note
    assert "wings" in note
    assert list(published(api)) == [machine.device(1)]  # the earlier one stays


async def test_a_policy_for_labels_waits_for_the_nodes_labels(
    machine, api, node, tmp_path, caplog
):
    caplog.set_level("INFO")
    labels = {"kubernetes.io/hostname": NODE, "pool": "spare"}
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}}
    await api.client().create("/api/v1/nodes", made)
    fault = api.fail(500, verb="get", resource="nodes", count=100_000)
    path = tmp_path / "policy.yaml"
    path.write_text(
        "nodes:\n- nodeLabels: {pool: spare}\n  gpus:\n"
        f"  - select: {{uuid: {machine.uuids[0]}}}\n    modes: []\n"
        "  - select: {all: true}\n    modes: [gpu]\n"
    )
    one = await node(policy_file=path)
    await eventually(lambda: "labels of the node" in caplog.text)
    assert one.daemon.cards.policy.gpus == ()
    fault.count = 0
    await eventually(lambda: one.daemon.cards.policy.gpus)
    await one.registered()
    await eventually(lambda: list(published(api)) == [machine.device(1)])


# The reconciler --------------------------------------------------------------------------


async def test_the_reconciler_runs_and_restores_a_file(machine, api, node):
    one = await node()
    plugin = await one.registered()
    claim = await create_claim(api.client(), "one", machine.device(0))
    await prepare(plugin, claim)
    (path,) = one.daemon.settings.cdi_dir.glob("*.json")
    path.unlink()
    await eventually(path.exists)
    await eventually(lambda: "CDIFileRestored" in events(api))


async def test_a_claim_allocated_anew_moves_to_its_new_card(machine, api, node):
    one = await node()
    plugin = await one.registered()
    claim = await create_claim(api.client(), "one", machine.device(0))
    await prepare(plugin, claim)
    await allocate(api.client(), "one", machine.device(1))
    answer = await prepare(plugin, claim)
    assert [device.device for device in answer.devices] == [machine.device(1)]


async def test_what_the_lock_guards_is_not_there_before(machine, api, short_root):
    daemon = NodeDaemon(settings_of(short_root, machine), api.client(), Nvml())
    with pytest.raises(RuntimeError, match="not loaded yet"):
        daemon.watch  # noqa: B018 - a property that raises
