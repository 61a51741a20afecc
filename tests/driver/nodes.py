"""Node plugins in this process, each with a kubelet root of its own or a shared one."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from driver.daemon import NodeDaemon
from driver.hw.nvml import Nvml
from driver.settings import Settings
from kubeletplugin.contract import Object
from kubeletplugin.testing.apiserver import ApiServer
from kubeletplugin.testing.kubelet import Answer, PluginClient, find_plugin
from tests.driver.cluster import ref_of
from tests.driver.machine import DRIVER, NODE, Machine
from tests.polling import eventually


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def settings_of(root: Path, machine: Machine, **changes: Any) -> Settings:
    """Everything below ``root``, whole cards only, with checks several times a second."""
    policy = root / "whole.yaml"
    policy.write_text("gpus: [{select: {all: true}, modes: [gpu]}]")
    fast = Settings(
        node_name=NODE,
        kubelet_root=root / "k",
        cdi_dir=root / "cdi",
        simulate="h100-80gb:2",
        simulate_root=machine.root,
        cgroup_root=machine.root / "sys/fs/cgroup",
        policy_file=policy,
        mps_socket=None,
        http_address="",
        health_interval_s=0.05,
        refresh_interval_s=0.1,
        reconcile_interval_s=0.1,
    )
    return replace(fast, **changes)


class Running:
    """A daemon and its task."""

    def __init__(self, settings: Settings, api: ApiServer) -> None:
        self.nvml = Nvml()
        self.daemon = NodeDaemon(settings, api.client(), self.nvml)
        self.task = asyncio.create_task(self.daemon.run())

    async def serving(self) -> "Running":
        """Wait until it serves; its end before that is raised."""
        await eventually(lambda: self.task.done() or self._serves(), "it serves")
        if self.task.done():
            self.task.result()
        return self

    def _serves(self) -> bool:
        return hasattr(self.daemon, "plugin") and self.daemon.plugin.phase.value == "serving"

    async def registered(self) -> PluginClient:
        """As the kubelet does it."""
        await self.serving()
        registry = self.daemon.settings.kubelet_root / "plugins_registry"
        return await find_plugin(registry, DRIVER)

    async def stop(self) -> None:
        """Stop in order; raises what ``run`` raised."""
        self.daemon.stop.set()
        try:
            await self.task
        finally:
            self.nvml.close()


async def prepare(plugin: PluginClient, claim: Object) -> Answer:
    """One claim by a call of its own."""
    async with plugin:
        return (await plugin.prepare([ref_of(claim)]))[claim["metadata"]["uid"]]


async def unprepare(plugin: PluginClient, claim: Object) -> str:
    async with plugin:
        return (await plugin.unprepare([ref_of(claim)]))[claim["metadata"]["uid"]]


async def stop_all(nodes: list[Running]) -> None:
    for node in nodes:
        with suppress(Exception):
            await node.stop()
