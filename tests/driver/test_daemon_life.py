"""Starts, ends and hand-overs of a node plugin."""

import asyncio
from functools import partial

import pytest

from driver.errors import PolicyError
from driver.hw.health import HealthSource
from driver.model.claims import ClaimState
from driver.periodic import every
from driver.sim import control
from driver.state.journal import Journal
from kubeletplugin.plugin import Phase
from tests.driver.cluster import create_claim, delete_claim, events, published
from tests.driver.nodes import free_port, prepare, unprepare
from tests.polling import eventually

SLOW_S = 0.5
MOST_S = 30.0


def on_disk(one):
    """The journal as the next process would find it."""
    return Journal.open(one.daemon.settings.journal_dir).all()


# Two instances ---------------------------------------------------------------------------


async def test_a_standby_is_ready_and_takes_over_with_all_claims(machine, api, node):
    first = await node(instance="a")
    claim = await create_claim(api.client(), "one", machine.device(0))
    answer = await prepare(await first.registered(), claim)
    second = await node(serves=False, instance="b")  # sockets of its own, the same folders
    await eventually(lambda: hasattr(second.daemon, "plugin"))
    await eventually(lambda: second.daemon.plugin.phase is Phase.STANDBY)
    probe = second.daemon.ready()
    assert probe.ok
    assert "standing by" in probe.reasons[0]
    await first.stop()
    await second.serving()
    assert await prepare(await second.registered(), claim) == answer
    await eventually(lambda: second.daemon.ready().ok)


async def test_a_standby_that_is_not_needed_ends_without_touching_anything(node):
    first = await node()
    second = await node(serves=False)
    await eventually(lambda: hasattr(second.daemon, "plugin"))
    await eventually(lambda: second.daemon.plugin.phase is Phase.STANDBY)
    await second.stop()
    assert second.daemon.plugin.phase is Phase.STOPPED
    assert first.daemon.plugin.phase is Phase.SERVING
    assert list((first.daemon.settings.kubelet_root / "plugins_registry").glob("*.sock"))


async def test_who_loses_its_sockets_to_another_instance_ends_with_that_reason(node):
    one = await node()
    one.daemon.plugin.failed.set()
    with pytest.raises(RuntimeError, match="another instance has taken the sockets"):
        await one.task


# The end ---------------------------------------------------------------------------------


async def test_a_stop_lets_work_under_way_finish(machine, api, node):
    one = await node()
    plugin = await one.registered()
    claim = await create_claim(api.client(), "one", machine.device(0), mode="ExclusiveProcess")
    control.set_latency(machine.root, "nvmlDeviceSetComputeMode", SLOW_S)
    work = asyncio.create_task(prepare(plugin, claim))
    await eventually(one.daemon.journal.all, "the intent is on disk")
    assert one.daemon.journal.all()[0].state is ClaimState.STARTED
    await one.stop()
    assert (await work).error == ""
    (record,) = on_disk(one)
    assert record.state is ClaimState.COMPLETED


async def test_work_that_outlasts_the_stop_is_left_to_the_journal(machine, api, node, caplog):
    one = await node()
    plugin = await one.registered()
    claim = await create_claim(api.client(), "one", machine.device(0), mode="ExclusiveProcess")
    control.set_latency(machine.root, "nvmlDeviceSetComputeMode", SLOW_S)
    one.daemon.plugin.stop = partial(one.daemon.plugin.stop, 0.05)
    work = asyncio.create_task(prepare(plugin, claim))
    await eventually(one.daemon.journal.all, "the intent is on disk")
    one.daemon.stop.set()
    await one.task
    assert "work on claims outlasts the stop" in caplog.text
    await asyncio.gather(work, return_exceptions=True)  # the connection is gone
    await eventually(lambda: one.daemon.journal.all()[0].state is ClaimState.COMPLETED)
    assert await one.daemon.plugin.idle(MOST_S), "its CDI file comes after the record"
    await asyncio.to_thread(one.daemon.journal.flush)


async def test_a_stop_waits_for_the_check_under_way(machine, node, monkeypatch):
    one = await node(refresh_interval_s=60.0)
    poll, begun, ended = one.daemon.watch._poll, [], []

    def counted(*args):
        begun.append(1)
        try:
            return poll(*args)
        finally:
            ended.append(1)

    monkeypatch.setattr(one.daemon.watch, "_poll", counted)
    control.set_latency(machine.root, "nvmlDeviceGetMemoryInfo", SLOW_S / 2)
    await eventually(lambda: len(begun) > len(ended), "a check is under way")
    one.daemon.stop.set()
    await one.task
    assert len(begun) == len(ended)  # nothing is written any more


async def test_resourceslices_stay_after_a_stop(api, node):
    one = await node()
    await one.registered()
    await eventually(lambda: len(published(api)) == 2)
    await one.stop()
    assert len(published(api)) == 2


async def test_a_background_task_that_fails_ends_the_run_with_its_error(node, monkeypatch):
    def broken(self, timeout_s):
        raise KeyError("bug in the wait")

    monkeypatch.setattr(HealthSource, "wait", broken)
    one = await node(serves=False)
    with pytest.raises(KeyError, match="bug in the wait"):
        await one.task
    assert one.daemon.plugin.phase is Phase.STOPPED


async def test_a_periodic_check_with_a_bug_runs_again(caplog):
    runs = []

    async def check():
        runs.append(1)
        if len(runs) == 1:
            raise KeyError("bug")

    stop = asyncio.Event()
    task = asyncio.create_task(every(0.001, check, stop))
    await eventually(lambda: len(runs) > 2)
    stop.set()
    await task
    assert caplog.text.count("a periodic check hit a bug") == 1


# What keeps it from starting -------------------------------------------------------------


async def test_a_bad_policy_file_is_refused_with_all_its_problems(node, tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("taintEffect: Maybe\nwings: 2\n")
    with pytest.raises(PolicyError) as raised:
        await node(policy_file=path)
    assert len(raised.value.problems) == 2


async def test_a_policy_by_node_label_decides_from_the_first_publication_on(node, api, tmp_path):
    client = api.client()
    name = "node-1"
    await client.create(
        "/api/v1/nodes",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"pool": "reserved"}},
        },
    )
    path = tmp_path / "policy.yaml"
    path.write_text(
        "nodes:\n- nodeLabels: {pool: reserved}\n  gpus: [{select: {all: true}, modes: []}]\n"
    )
    one = await node(policy_file=path, node_name=name)
    await one.registered()
    await eventually(one.daemon.publisher.published.is_set)
    assert published(api) == {}


async def test_a_port_in_use_is_refused(node):
    port = free_port()
    await node(http_address=f"127.0.0.1:{port}")
    with pytest.raises(OSError, match="--http-address"):
        await node(http_address=f"127.0.0.1:{port}", instance="other")


async def test_a_folder_that_cannot_be_made_is_refused(node, short_root):
    (short_root / "k").write_text("not a folder")
    with pytest.raises(OSError, match="Not a directory"):
        await node()


# After a restart -------------------------------------------------------------------------


async def test_recovery_is_told_on_the_claims(machine, api, node):
    one = await node()
    plugin = await one.registered()
    claims = [
        await create_claim(api.client(), f"c{card}", machine.device(card)) for card in (0, 1)
    ]
    for claim in claims:
        assert (await prepare(plugin, claim)).error == ""
    await one.stop()
    for path in one.daemon.settings.cdi_dir.glob("*.json"):
        path.unlink()
    control.lose(machine.root, 0)
    two = await node(reconcile_interval_s=60.0)
    await eventually(lambda: {"ClaimRecovered", "ClaimNotRecovered"} <= set(events(api)))
    assert "redone" in events(api)["ClaimRecovered"][0]
    assert "GPU_IS_LOST" in events(api)["ClaimNotRecovered"][0]
    assert len(two.daemon.journal.all()) == 2
    registry = two.daemon.metrics.registry
    for outcome in ("redone", "unrepaired"):
        found = registry.get_sample_value("aliquot_recovered_claims_total", {"outcome": outcome})
        assert found == 1


async def test_a_damaged_record_is_rebuilt_before_anything_is_served(machine, api, node):
    one = await node()
    claim = await create_claim(api.client(), "one", machine.device(0))
    await prepare(await one.registered(), claim)
    await one.stop()
    (path,) = one.daemon.settings.journal_dir.glob("*.json")
    path.write_bytes(b"{")
    two = await node()
    assert two.daemon.journal.damaged == ()
    assert len(two.daemon.journal.all()) == 1
    assert await unprepare(await two.registered(), claim) == ""


async def test_a_damaged_record_blocks_cards_while_the_api_server_is_away(machine, api, node):
    one = await node()
    claim = await create_claim(api.client(), "one", machine.device(0))
    await prepare(await one.registered(), claim)
    await one.stop()
    (path,) = one.daemon.settings.journal_dir.glob("*.json")
    path.write_bytes(b"{")
    fault = api.fail(503, verb="list", resource="resourceclaims", count=100_000)
    two = await node()
    await two.registered()
    await eventually(lambda: set(map(tuple, published(api).values())) == {("record",)})
    fault.count = 0
    await eventually(lambda: set(map(tuple, published(api).values())) == {()})


async def test_an_orphan_of_an_earlier_process_is_released(machine, api, node, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("orphanGraceSeconds: 0\n")
    one = await node(policy_file=policy)
    claim = await create_claim(api.client(), "one", machine.device(0))
    await prepare(await one.registered(), claim)
    await one.stop()
    await delete_claim(api.client(), "one")
    two = await node(policy_file=policy)
    await eventually(lambda: two.daemon.journal.all() == ())
    await eventually(lambda: "OrphanedClaimReleased" in events(api))
