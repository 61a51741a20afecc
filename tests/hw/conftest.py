from dataclasses import dataclass
from pathlib import Path

import pytest

from driver.hw.card import Cards
from driver.hw.discover import discover
from driver.hw.nvml import Nvml
from driver.hw.sysfs import Sysfs
from driver.sim import control, seam, setup


@dataclass
class Node:
    """A simulated node with the real pynvml on it."""

    root: Path
    nvml: Nvml

    @property
    def cards(self):
        return Cards(self.nvml, self.root)

    @property
    def sysfs(self):
        return Sysfs(self.root)

    def discover(self):
        return discover(self.nvml, self.sysfs)

    def uuids(self):
        return [gpu.uuid for gpu in self.discover().gpus]

    def inject(self, call, code, **more):
        control.inject(self.root, call, code, **more)


@pytest.fixture
def node(tmp_path):
    """Create a node; ``opened=False`` leaves NVML to the test."""
    made = []

    def make(profile="h100-80gb", count=2, *, opened=True, **more):
        root = tmp_path / "node"
        setup.create(root, profile, count, **more)
        seam.install(root)
        node = Node(root, Nvml())
        made.append(node)
        if opened:
            node.nvml.open()
        return node

    yield make
    for node in made:
        node.nvml.close()
    seam.uninstall()
