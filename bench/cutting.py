"""How much of a partition's prepare is ours, and how much the simulated NVML's.

The simulator keeps the whole node in one file, so that several processes see it: its cost grows
with the partitions on the node. Here driver and simulator run in one process and are timed apart.
"""

import asyncio
import inspect
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from api.policy import NodePolicy
from bench.stats import percentile, table
from driver.apply.executor import Executor
from driver.hw.card import Cards
from driver.hw.nvml import Nvml
from driver.lanes import Lanes
from driver.main import simulate
from driver.node import NodeCards
from driver.plugin import GpuDriver, Identity
from driver.settings import DEFAULT_DRIVER
from driver.state.cdi_dir import CdiDir
from driver.state.journal import Journal
from driver.state.known import Known

_POOL, _BOOT = "bench", "boot"
_PART = 50


class _Timed:
    """Seconds spent in pynvml so far."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False  # some call others
        for name in dir(pynvml):
            call = getattr(pynvml, name)
            if name.startswith("nvml") and inspect.isfunction(call):
                setattr(pynvml, name, self._timed(call))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            if self._inside:
                return call(*arguments)
            self._inside, started = True, time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self._inside = False
                self.seconds += time.perf_counter() - started

        return timed


def split(policy: NodePolicy, board: str, cards: int, profile: str, count: int) -> str:
    """A table: prepares of ``profile`` one after another, none of them ended."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        simulate(f"{board}:{cards}", root / "node", _POOL)
        driver, cut = _driver(root, policy)
        names = [name for name, kind in cut.items() if kind == profile][:count]
        took = asyncio.run(_prepare(driver, names))
    parts = [took[:_PART], took[len(took) // 2 :][:_PART], took[-_PART:]]
    rows = []
    for label, part in zip(("first", "middle", "last"), parts, strict=True):
        medians = [percentile([pair[i] * 1e3 for pair in part], 0.5) for i in (0, 1)]
        rows.append([f"{label} {_PART} of {count}", *(f"{ms:.2f}" for ms in medians)])
    return table(("prepare", "ours, p50 ms", "simulated NVML, p50 ms"), rows)


def _driver(root: Path, policy: NodePolicy) -> tuple[GpuDriver, dict[str, str]]:
    """The driver's parts as the daemon wires them, and the profile of each partition."""
    nvml = Nvml()
    nvml.open()
    cards = Cards(nvml, root / "node")
    node = NodeCards(
        cards, Known(root / "known"), policy, driver=DEFAULT_DRIVER, pool=_POOL, boot_id=_BOOT
    )
    node.refresh(set(), set)
    journal, cdi = Journal.open(root / "claims"), CdiDir(root / "cdi", "bench_")
    identity = Identity(DEFAULT_DRIVER, _POOL, _BOOT)
    driver = GpuDriver(identity, node, journal, cdi, Executor(cards, journal, cdi), Lanes())
    cut = {
        str(name): profile.name
        for name, device in node.devices.items()
        if (profile := getattr(device, "profile", None)) is not None
    }
    return driver, cut


async def _prepare(driver: GpuDriver, names: list[str]) -> list[tuple[float, float]]:
    """Seconds of our own and of the simulator's for each."""
    nvml, found = _Timed(), []
    for name in names:
        before, started = nvml.seconds, time.perf_counter()
        await driver.prepare(_claim(name))
        took, inside = time.perf_counter() - started, nvml.seconds - before
        found.append((took - inside, inside))
    return found


def _claim(device: str) -> dict[str, Any]:
    result = {"request": "gpu", "driver": DEFAULT_DRIVER, "pool": _POOL, "device": device}
    return {
        "metadata": {"namespace": "default", "name": device, "uid": str(uuid.uuid4())},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
