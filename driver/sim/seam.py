"""Put the simulator where nvidia-ml-py looks for the NVIDIA library.

Everything above, nvidia-ml-py included, runs as it does on hardware.
"""

from pathlib import Path

import pynvml

from driver.sim.nvml.library import Library


def install(root: Path) -> None:
    """Make pynvml in this process talk to the simulated node under ``root``.

    Raises:
        SimulationError: no simulated node was created there.
    """
    library = Library(root)  # fails before pynvml is touched
    uninstall()
    pynvml.nvmlLib = library


def uninstall() -> None:
    """Make pynvml look for the real library again; its init count starts from zero."""
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlLib_refcount = 0
