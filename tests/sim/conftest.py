"""Fixtures: simulated nodes that the real pynvml talks to."""

import pynvml
import pytest

from driver.sim import seam, setup


@pytest.fixture
def node(tmp_path):
    """Create a node and connect pynvml to it: ``node("h100-80gb", 8)`` returns its root."""

    def make(profile="h100-80gb", count=2, **options):
        root = tmp_path / "node"
        setup.create(root, profile, count, **options)
        seam.install(root)
        pynvml.nvmlInit()
        return root

    yield make
    seam.uninstall()


@pytest.fixture
def refused():
    """``with refused(15): call()``: the call must raise an NVMLError with that code."""

    class Refused:
        def __init__(self, code):
            self.code = code

        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            assert isinstance(error, pynvml.NVMLError), f"no NVMLError but {error!r}"
            assert error.value == self.code, f"code {error.value}, expected {self.code}"
            return True

    return Refused
