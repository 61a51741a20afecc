"""The process: signals, exit statuses, and a death in the middle of the night."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest

from driver import main
from driver.settings import Settings
from driver.sim import seam
from kubeletplugin.testing.apiserver.__main__ import kubeconfig
from kubeletplugin.testing.kubelet import find_plugin
from tests.driver.cluster import create_claim, published
from tests.driver.machine import DRIVER, NODE
from tests.driver.nodes import prepare, unprepare
from tests.polling import eventually, eventually_sync

NOBODY = "http://127.0.0.1:1"  # no API server: the node serves all the same


@pytest.fixture
def settings(short_root):
    """Of a simulated node without an API server."""
    yield settings_for(short_root, NOBODY)
    seam.uninstall()


def settings_for(root: Path, url: str, **changes) -> Settings:
    config = root / "kubeconfig"
    config.write_text(kubeconfig(url))
    return Settings(
        node_name=NODE,
        kubelet_root=root / "k",
        cdi_dir=root / "cdi",
        simulate="h100-80gb:2",
        simulate_root=root / "sim",
        kubeconfig=str(config),
        http_address="",
        **changes,
    )


class Process:
    """``aliquot node run`` as a process of its own."""

    def __init__(self, root: Path, url: str, *options: str) -> None:
        self.registry = root / "k/plugins_registry"
        (root / "kubeconfig").write_text(kubeconfig(url))
        self.arguments = [
            *("node", "run", "--node-name", NODE),
            *("--simulate", "h100-80gb:2", "--simulate-root", str(root / "sim")),
            *("--kubelet-root", str(root / "k"), "--cdi-dir", str(root / "cdi")),
            *("--kubeconfig", str(root / "kubeconfig"), "--http-address", ""),
            *("--log-format", "json", *options),
        ]
        self.log = root / "log"

    async def __aenter__(self) -> "Process":
        with self.log.open("ab") as log:
            self.child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "from cli.main import main; main()",
                *self.arguments,
                stderr=log,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.child.kill()
        await self.child.wait()

    async def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.child.send_signal(number)
        return await self.child.wait()


async def test_a_node_process_serves_until_sigterm(api, short_root):
    async with Process(short_root, api.url) as process:
        plugin = await find_plugin(process.registry, DRIVER)
        await eventually(lambda: len(published(api)) == 4)  # whole, and in turns
        claim = await create_claim(api.client(), "one", next(iter(published(api))))
        assert (await prepare(plugin, claim)).error == ""
        assert await process.end(signal.SIGTERM) == 0
    assert len(list((short_root / "cdi").glob("*.json"))) == 1  # a stop releases nothing
    assert claim["metadata"]["uid"] in process.log.read_text()


async def test_a_killed_process_knows_its_claims_when_it_is_back(api, short_root):
    async with Process(short_root, api.url) as process:
        plugin = await find_plugin(process.registry, DRIVER)
        await eventually(lambda: published(api))
        claim = await create_claim(
            api.client(), "one", next(iter(published(api))), mode="ExclusiveProcess"
        )
        answer = await prepare(plugin, claim)
        assert await process.end(signal.SIGKILL) == -signal.SIGKILL
    (path,) = (short_root / "cdi").glob("*.json")
    text = path.read_bytes()
    async with Process(short_root, api.url) as process:
        plugin = await find_plugin(process.registry, DRIVER)
        assert await prepare(plugin, claim) == answer
        assert path.read_bytes() == text
        assert await unprepare(plugin, claim) == ""
        assert not path.exists()
        assert await process.end(signal.SIGTERM) == 0


async def test_a_bad_policy_ends_the_process_with_all_its_problems(api, short_root):
    policy = short_root / "policy.yaml"
    policy.write_text("taintEffect: Maybe\nignoredXids: [0]\nwings: 2\n")
    async with Process(short_root, api.url, "--config", str(policy)) as process:
        assert await process.end() == 1
    (line,) = process.log.read_text().splitlines()
    for mistake in ("taintEffect", "ignoredXids[0]", "wings"):
        assert mistake in line


# In this process -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_stop(settings, number):
    socket = settings.plugin_folder / "dra.sock"

    def end():
        eventually_sync(socket.exists, "it serves")  # the handlers were there before
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=end)
    thread.start()
    assert main.run(settings) == 0
    thread.join()
    assert not socket.exists()


def test_a_bad_policy_is_exit_status_one(settings, caplog):
    policy = settings.kubelet_root.parent / "policy.yaml"
    policy.write_text("taintEffect: Maybe\n")
    assert main.run(settings_for(policy.parent, NOBODY, policy_file=policy)) == 1
    assert str(policy) in caplog.text


def test_a_kubeconfig_that_is_missing_is_exit_status_one(settings, caplog):
    Path(settings.kubeconfig).unlink()
    assert main.run(settings) == 1
    assert settings.kubeconfig in caplog.text


@pytest.mark.parametrize("what", ["h100-80gb:0", "riva-128", "h100-80gb:many"])
def test_cards_that_cannot_be_simulated_are_exit_status_one(short_root, caplog, what):
    config = short_root / "kubeconfig"
    settings = Settings(node_name=NODE, simulate=what, simulate_root=short_root / "sim")
    assert main.run(settings) == 1
    assert caplog.records
    assert not config.exists()


def test_two_simulated_nodes_have_different_cards(short_root):
    found = []
    for name in ("node-1", "node-2"):
        main.simulate("h100-80gb:1", short_root / name, name)
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found.append(pynvml.nvmlDeviceGetUUID(handle))
    seam.uninstall()
    assert len(set(found)) == 2


def test_a_node_without_nvml_starts_all_the_same(tmp_path):
    main.prepare_hardware(Settings(node_name=NODE, driver_root=tmp_path))
    seam.uninstall()
