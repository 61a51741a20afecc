"""The library under the kubelet stand-in, over real sockets."""

import asyncio
import stat
import subprocess
import sys

import grpc.aio
import pytest

from kubeletplugin.contract import DeviceHealth, PreparedDevice
from kubeletplugin.health import HealthBoard
from kubeletplugin.plugin import Phase
from kubeletplugin.servicers import SUPPORTED
from kubeletplugin.sockets import SocketServer
from kubeletplugin.testing.kubelet import Answer, find_plugin, register
from tests.kubeletplugin.stub import (
    DRIVER,
    Done,
    ExpectedError,
    StubDriver,
    device,
    make_plugin,
    publishing,
    ref,
)
from tests.polling import eventually


@pytest.fixture
async def started(root):
    """Factory of serving plugins that are stopped afterwards."""
    plugins = []

    async def start(**parts):
        plugin = make_plugin(root, **parts)
        plugins.append(plugin)
        await plugin.acquire()
        await plugin.serve()
        return plugin

    yield start
    for plugin in plugins:
        await plugin.stop(1)


async def find(root, version="v1"):
    return await find_plugin(root / "plugins_registry", DRIVER, version=version)


async def test_registration_says_what_the_kubelet_needs(root, started):
    plugin = await started()
    assert not plugin.ready
    found = await find(root)
    assert found.endpoint == root / "plugins" / DRIVER / "dra.sock"
    assert found.supported == SUPPORTED
    assert found.supported[:2] == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
    assert plugin.ready
    assert publishing(plugin).registered
    assert publishing(plugin).resyncs == 1


async def test_a_kubelet_that_comes_back_makes_the_publisher_look_again(root, started):
    plugin = await started()
    await find(root)
    await find(root)
    assert publishing(plugin).resyncs == 2


async def test_where_the_kubelet_took_an_earlier_instance_nothing_waits_for_it(root, started):
    """The kubelet looks for sockets once a second; a first start waits, in case it never does."""
    first = await started()
    assert not publishing(first).registered
    await find(root)
    await first.stop(1)
    assert not publishing(first).registered
    second = await started()
    assert publishing(second).registered
    assert not second.ready
    await register(root / "plugins_registry" / f"{DRIVER}-reg.sock", refuse="name is taken")
    assert not publishing(second).registered


async def test_a_refused_registration_is_kept_with_its_reason(root, started):
    plugin = await started()
    await register(root / "plugins_registry" / f"{DRIVER}-reg.sock", refuse="name is taken")
    assert plugin.registration.error == "name is taken"
    assert not plugin.ready
    assert not publishing(plugin).registered


async def test_sockets_and_folder_are_for_their_owner_only(root, started):
    await started()
    folder = root / "plugins" / DRIVER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for socket in (folder / "dra.sock", root / "plugins_registry" / f"{DRIVER}-reg.sock"):
        assert stat.S_ISSOCK(socket.stat().st_mode)
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_prepare_and_unprepare_in_both_versions(root, started, version):
    driver, done = StubDriver(errors={"uid-1": ExpectedError("no")}), Done()
    await started(driver=driver, observer=done)
    async with await find(root, version) as plugin:
        answers = await plugin.prepare([ref(0), ref(1)])
        assert answers == {"uid-0": Answer((device(0),)), "uid-1": Answer(error="no")}
        assert answers["uid-0"].cdi_device_ids == ("example.com/claim=uid-0-0",)
        assert await plugin.unprepare([ref(0), ref(7)]) == {"uid-0": "", "uid-7": ""}
    assert driver.prepared == {}


async def test_a_share_id_travels_in_v1_only(root, started):
    share = PreparedDevice(("gpu",), "node-1", "gpu-0", ("a/b=c",), "share-1")
    driver = StubDriver(prepared={"uid-0": (share,)})
    await started(driver=driver)
    for version, expected in (("v1", "share-1"), ("v1beta1", None)):
        async with await find(root, version) as plugin:
            answers = await plugin.prepare([ref(0)])
            assert [d.share_id for d in answers["uid-0"].devices] == [expected]


async def test_shortly_before_the_deadline_a_call_is_told_what_it_waits_for(root, started):
    driver = StubDriver(gate=asyncio.Event())
    await started(driver=driver)
    async with await find(root) as plugin:
        (answer,) = (await plugin.prepare([ref()], timeout_s=2)).values()
        assert "the driver is not done yet" in answer.error
        driver.gate.set()
        await eventually(lambda: driver.prepared)
        assert driver.most_active == 1


async def test_the_end_of_a_call_ends_the_wait_and_not_the_work(root, started, monkeypatch):
    monkeypatch.setattr("kubeletplugin.service._MARGIN_S", -60.0)  # later than the deadline
    driver = StubDriver(gate=asyncio.Event())
    await started(driver=driver)
    async with await find(root) as plugin:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await plugin.prepare([ref()], timeout_s=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert driver.prepared == {}
        driver.gate.set()
        await eventually(lambda: driver.prepared)
        assert driver.most_active == 1


async def test_stop_lets_running_work_finish_and_answers_it(root):
    driver = StubDriver(gate=asyncio.Event())
    plugin = make_plugin(root, driver)
    await plugin.acquire()
    await plugin.serve()
    async with await find(root) as client:
        call = asyncio.create_task(client.prepare([ref()]))
        await eventually(lambda: driver.active == 1)
        stopping = asyncio.create_task(plugin.stop(20))
        await eventually(lambda: not list((root / "plugins").rglob("*.sock")))
        # As long as this one is there, the kubelet does not hang up on the call.
        assert list((root / "plugins_registry").glob("*.sock"))
        driver.gate.set()
        assert await stopping is True
        assert (await call)["uid-0"] == Answer((device(0),))
    assert list((root / "plugins_registry").glob("*.sock")) == []
    assert plugin.phase is Phase.STOPPED


async def test_stop_says_when_work_outlasts_it(root):
    driver = StubDriver(gate=asyncio.Event())
    plugin = make_plugin(root, driver)
    await plugin.acquire()
    await plugin.serve()
    async with await find(root) as client:
        call = asyncio.create_task(client.prepare([ref()]))
        await eventually(lambda: driver.active == 1)
        assert await plugin.stop(0) is False
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    driver.gate.set()
    assert await plugin._work.drain(10)


async def test_a_second_instance_stands_by_is_ready_and_takes_over(root):
    first, second = make_plugin(root), make_plugin(root)
    await first.acquire()
    await first.serve()
    socket = root / "plugins" / DRIVER / "dra.sock"
    inode = socket.stat().st_ino
    waiting = asyncio.create_task(second.acquire())
    await eventually(lambda: second.phase is Phase.STANDBY)
    assert second.ready
    async with await find(root) as client:
        assert (await client.prepare([ref()]))["uid-0"].error == ""
    assert socket.stat().st_ino == inode  # not stolen

    await first.stop(1)
    await waiting
    assert second.phase is Phase.HOLDING
    assert not second.ready
    await second.serve()
    async with await find(root) as client:
        assert (await client.prepare([ref()]))["uid-0"].error == ""
    assert second.ready
    await second.stop(1)


async def test_the_next_instance_is_registered_before_this_one_is_gone(root):
    """Its calls wait until this one has answered its own and freed the state."""
    busy = StubDriver(gate=asyncio.Event())
    first, second = make_plugin(root, busy, instance="a"), make_plugin(root, instance="b")
    await first.acquire()
    await first.serve()
    waiting = asyncio.create_task(second.acquire())
    await eventually(lambda: second.phase is Phase.STANDBY)
    assert [path.name for path in (root / "plugins_registry").glob("*.sock")] == [
        first._paths.registration_socket.name
    ]
    async with await register(first._paths.registration_socket) as old:
        call = asyncio.create_task(old.prepare([ref()]))
        await eventually(lambda: busy.active == 1)

        stopping = asyncio.create_task(first.stop(20))
        await eventually(second._paths.registration_socket.exists)
        async with await register(second._paths.registration_socket) as new:
            early = asyncio.create_task(new.prepare([ref(1)]))
            await eventually(lambda: not first._paths.dra_socket.exists())
            assert not early.done()
            assert second.phase is Phase.STANDBY
            busy.gate.set()
            assert (await call)["uid-0"].error == ""
            assert await stopping
            await waiting
            await second.serve()
            assert (await early)["uid-1"].error == ""
            await second.stop(1)


async def test_without_a_next_instance_a_stop_does_not_wait_for_one(root):
    plugin = make_plugin(root, instance="a")
    await plugin.acquire()
    await plugin.serve()
    async with asyncio.timeout(30):
        assert await plugin.stop(1)
    assert plugin.phase is Phase.STOPPED


async def test_wiped_folders_get_their_sockets_and_locks_back(root, started):
    plugin = await started()
    await find(root)
    for folder in (root / "plugins_registry", root / "plugins" / DRIVER):
        for file in folder.iterdir():
            file.unlink()
    await plugin.repair()
    assert plugin._lock.intact()
    assert not plugin.registration.registered.is_set()
    async with await find(root) as client:
        assert (await client.prepare([ref()]))["uid-0"].error == ""
    assert plugin.ready


async def test_the_watchdog_repairs_by_itself(root, started, monkeypatch):
    monkeypatch.setattr("kubeletplugin.plugin.WATCHDOG_S", 0.01)
    await started()
    socket = root / "plugins_registry" / f"{DRIVER}-reg.sock"
    socket.unlink()
    await eventually(socket.exists)
    await find(root)


async def test_the_watchdog_survives_a_folder_that_cannot_be_made(root, started, monkeypatch):
    monkeypatch.setattr("kubeletplugin.plugin.WATCHDOG_S", 0.01)
    plugin = await started()
    registry = root / "plugins_registry"
    for file in registry.iterdir():
        file.unlink()
    registry.rmdir()
    registry.write_text("not a folder")
    tries = 0
    real = plugin.repair

    async def repair():
        nonlocal tries
        tries += 1
        await real()

    monkeypatch.setattr(plugin, "repair", repair)
    await eventually(lambda: tries > 2)
    registry.unlink()
    await eventually(lambda: list(registry.glob("*.sock")) if registry.is_dir() else False)
    await find(root)


async def test_a_lock_lost_to_another_instance_stops_the_plugin(root, started):
    plugin = await started()
    for path in (*plugin._paths.locks, *(root / "plugins" / DRIVER).glob("*ed.lock")):
        path.unlink()
    (root / "plugins" / DRIVER / "turn.lock").unlink()
    thief = make_plugin(root)
    await thief.acquire()
    await plugin.repair()
    assert plugin.failed.is_set()
    await thief.stop(0)


async def test_a_stale_socket_of_a_killed_process_is_replaced(root, started):
    folder = root / "plugins" / DRIVER
    folder.mkdir(parents=True)
    code = (
        "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\n"
        "s.listen()\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(folder / "dra.sock"), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    process.kill()
    await process.communicate()
    assert (folder / "dra.sock").exists()
    await started()
    async with await find(root) as client:
        assert (await client.prepare([ref()]))["uid-0"].error == ""


async def test_a_socket_that_cannot_be_bound_is_an_error_with_its_path(tmp_path):
    server = SocketServer(tmp_path / "missing" / "dra.sock", lambda _: None)
    with pytest.raises(OSError, match=r"cannot bind socket .*/missing/dra.sock"):
        await server.start()
    assert not server.running


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_health_is_streamed_at_once_and_on_change(root, started, version):
    plugin = await started()
    devices = [
        DeviceHealth("node-1", "gpu-0", True),
        DeviceHealth("node-1", "gpu-1", False, "xid 79"),
        DeviceHealth("node-1", "gpu-2", None),
    ]
    plugin.set_health(devices)
    async with await find(root) as client:
        stream = client.health(version)
        assert await anext(stream) == {
            ("node-1", "gpu-0"): "HEALTHY",
            ("node-1", "gpu-1"): "UNHEALTHY",
            ("node-1", "gpu-2"): "UNKNOWN",
        }
        plugin.set_health(devices[:1])
        assert await anext(stream) == {("node-1", "gpu-0"): "HEALTHY"}
        await plugin.stop(1)
        assert [item async for item in stream] == []


async def test_health_is_sent_again_before_the_kubelet_forgets_it():
    board = HealthBoard(resend_s=0.001)
    board.set([DeviceHealth("p", "d", True)])
    stream = board.watch()
    lists = [await anext(stream) for _ in range(3)]
    assert lists == [(DeviceHealth("p", "d", True),)] * 3
    board.set([DeviceHealth("p", "d", True)])  # no change
    board.close()
    assert [item async for item in stream] == []


async def test_finding_a_plugin_that_is_not_there_says_where_it_looked(root):
    with pytest.raises(TimeoutError, match=rf"{DRIVER} did not register in .*no registration"):
        await find_plugin(root, DRIVER, timeout_s=0.05)


async def test_stopping_a_plugin_that_never_served_is_harmless(root):
    plugin = make_plugin(root)
    await plugin.acquire()
    assert await plugin.stop(0)
