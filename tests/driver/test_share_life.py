"""A node plugin with a real MPS supervisor on a stand-in of the control program, over sockets."""

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from driver.sim import control
from driver.sim.store import Store
from tests.driver.cluster import devices_told, events, published
from tests.driver.machine import EXCLUSIVE, pod_uid, share
from tests.driver.nodes import prepare, unprepare
from tests.mps.rig import Rig
from tests.polling import eventually

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
POLICY = "gpus: [{select: {all: true}, modes: [gpu, mps, timeslice]}]"
SPEC = {"devices": {"requests": [{"name": "gpu0", "exactly": {"deviceClassName": "gpu-share"}}]}}


@pytest.fixture
def rig():
    root = Path(tempfile.mkdtemp(prefix="l", dir="/tmp"))
    one = Rig(root)
    yield one
    one.end()
    shutil.rmtree(root)


@pytest.fixture
def options(rig, tmp_path):
    policy = tmp_path / "shares.yaml"
    policy.write_text(POLICY)
    return {"policy_file": policy, "mps_socket": rig.settings.socket_path}


async def allocated(api, name, device, **more):
    client = api.client()
    made = await client.create(
        CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": SPEC,
        },
    )
    status = share(1, device, **more)["status"]
    return await client.update(f"{CLAIMS}/{name}/status", {**made, "status": status})


def condition(api, name):
    (entry,) = devices_told(api, name) or [{"conditions": [{"status": "", "reason": ""}]}]
    found = {each["type"]: each for each in entry["conditions"] if "type" in each}
    return {key: (each["status"], each["reason"]) for key, each in found.items()}


async def test_shares_come_with_the_supervisor_and_are_tainted_without(
    machine, api, node, rig, options
):
    device = f"{machine.device(0)}-mps"
    one = await node(**options)
    await one.registered()
    await eventually(lambda: len(published(api)) == 4)
    assert device not in published(api)
    await eventually(lambda: "SharesNotOffered" in events(api))
    with rig.process():
        await eventually(lambda: published(api).get(device) == [])
        await eventually(lambda: "SharesOffered" in events(api))
    await eventually(lambda: published(api).get(device) == ["mps"])
    await eventually(lambda: "MPSSupervisorAway" in events(api))


async def test_a_control_daemon_that_dies_is_told_and_comes_back(machine, api, node, rig, options):
    rig.change(settle_s=1.0)
    device = f"{machine.device(0)}-mps"
    with rig.process():
        one = await node(**options)
        plugin = await one.registered()
        claim = await allocated(api, "a", device)
        answer = await prepare(plugin, claim)
        assert answer.error == ""
        assert machine.compute_mode(0) == EXCLUSIVE
        await eventually(lambda: condition(api, "a") == {"Ready": ("True", "Prepared")})
        (daemon,) = rig.daemons()
        os.kill(daemon, signal.SIGKILL)
        await eventually(lambda: published(api)[device] == ["mps"])
        await eventually(lambda: condition(api, "a").get("Ready") == ("False", "MPSDaemonDown"))
        await eventually(lambda: "MpsDaemonDown" in events(api))
        await eventually(lambda: published(api)[device] == [])
        await eventually(lambda: condition(api, "a") == {"Ready": ("True", "Prepared")})
        assert rig.daemons() != [daemon]
        assert await unprepare(plugin, claim) == ""
        assert (rig.daemons(), machine.compute_mode(0)) == ([], 0)


async def test_a_plugin_that_is_replaced_leaves_daemons_alone(machine, api, node, rig, options):
    with rig.process():
        one = await node(**options)
        claim = await allocated(api, "a", f"{machine.device(0)}-mps")
        await prepare(await one.registered(), claim)
        before = rig.daemons()
        await one.stop()
        again = await node(**options)
        answer = await prepare(await again.registered(), claim)
        assert answer.error == ""
        assert rig.daemons() == before
        await unprepare(await again.registered(), claim)


async def test_a_pod_that_joins_a_claim_is_limited_by_its_cgroup(machine, api, node, rig, options):
    control.set_driver_version(machine.root, "615.71.09")
    for n in (1, 2):
        machine.start_pod(n)
    with rig.process():
        one = await node(**options)
        claim = await allocated(api, "a", f"{machine.device(0)}-mps", memory="3Gi", percent=0)
        plugin = await one.registered()
        assert (await prepare(plugin, claim)).error == ""
        assert list(machine.pod_limits().values()) == [3 << 30]
        await eventually(lambda: devices_told(api, "a"))
        assert devices_told(api, "a")[0]["data"]["memoryLimit"] == "cgroup"
        found = await api.client().get(f"{CLAIMS}/a")
        found["status"]["reservedFor"].append(
            {"resource": "pods", "name": "pod-2", "uid": pod_uid(2)}
        )
        await api.client().update(f"{CLAIMS}/a/status", found)
        await eventually(lambda: list(machine.pod_limits().values()) == [3 << 30] * 2)
        assert await unprepare(plugin, claim) == ""
        assert machine.pod_limits() == {}


async def test_the_watchdog_writes_a_condition_and_takes_it_back(machine, api, node, rig, options):
    with rig.process():
        one = await node(**options, watchdog_interval_s=0.05)
        claim = await allocated(api, "a", f"{machine.device(0)}-mps")
        await prepare(await one.registered(), claim)
        (pod,) = claim["status"]["reservedFor"]
        control.set_process(machine.root, 0, 7, 20 << 30, "mps")
        control.place_process(machine.root, 7, pod=pod["uid"])
        await eventually(lambda: condition(api, "a").get("WithinLimits") == ("False", "OverLimit"))
        assert b"aliquot_claims_over_limit 1.0" in _metrics(one)
        assert b'aliquot_mps_daemons{state="running"} 1.0' in _metrics(one)
        control.clear_processes(machine.root, 0)
        await eventually(lambda: condition(api, "a") == {"Ready": ("True", "Prepared")})
        await unprepare(await one.registered(), claim)


def _metrics(one):
    from driver.counting import Counts  # noqa: PLC0415

    if not one.daemon.metrics.__dict__.get("counted"):
        one.daemon.metrics.__dict__["counted"] = True
        daemon = one.daemon
        Counts(daemon.cards, lambda: daemon.journal, lambda: daemon.shares).show(daemon.metrics)
    return one.daemon.metrics.render()


async def test_a_cold_start_holds_up_no_claim_of_another_card(machine, api, node, rig, options):
    rig.knobs(slow_start_s=1.5)
    with rig.process():
        one = await node(**options)
        cold = await allocated(api, "cold", f"{machine.device(0)}-mps")
        quick = await allocated(api, "quick", f"{machine.device(1)}-timeslice")
        plugin = await one.registered()
        slow = asyncio.create_task(prepare(plugin, cold))
        await eventually(lambda: Store(machine.root).read().gpu(0).compute_mode == EXCLUSIVE)
        assert (await prepare(await one.registered(), quick)).error == ""
        assert not slow.done()
        assert (await slow).error == ""
        await unprepare(await one.registered(), cold)
