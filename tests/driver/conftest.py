import shutil
import tempfile
from pathlib import Path

import pytest

from driver.sim import seam, setup
from kubeletplugin.testing.apiserver import ApiServer
from tests.driver.machine import SHARED, Machine
from tests.driver.nodes import Running, settings_of, stop_all
from tests.hw.supervisor import FakeSupervisor


@pytest.fixture
def short_root():
    """A folder with a short path: Unix sockets allow 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="dr-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A node with two simulated H100."""
    monkeypatch.setattr("driver.watching._WAIT_S", 0.05)  # a stop waits that long
    root = tmp_path / "node"
    setup.create(root, "h100-80gb", 2)
    seam.install(root)
    made = Machine(root, tmp_path)
    yield made
    made.stop()
    seam.uninstall()


@pytest.fixture
def parts(machine):
    """The driver, started once on ``machine``."""
    return machine.start()


@pytest.fixture
async def api():
    async with ApiServer(bookmark_s=0.05) as running:
        yield running


@pytest.fixture
async def node(machine, api, short_root):
    """Start a node plugin: ``await node()`` waits until it serves, ``serves=False`` does not."""
    running = []

    async def start(*, serves=True, at=None, **changes):
        one = Running(settings_of(short_root, machine, **changes), at or api)
        running.append(one)
        return await one.serving() if serves else one

    yield start
    await stop_all(running)


@pytest.fixture
def supervisor(machine):
    """An MPS supervisor in memory; ask for it before the driver is started."""
    machine.supervisor = FakeSupervisor(machine.root / "run")
    return machine.supervisor


@pytest.fixture
def sharing(machine, supervisor):
    """The driver, started once with all that cards can be shared by."""
    made = machine.start(SHARED)
    made.look_at_supervisor()
    return made
