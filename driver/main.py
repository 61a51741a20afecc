"""The node plugin as a process: signals in, exit status out."""

import asyncio
import contextlib
import logging
import signal
import zlib
from pathlib import Path

from driver.daemon import NodeDaemon
from driver.errors import DriverError
from driver.hw.nvml import Nvml, load_library
from driver.settings import Settings
from kubeletplugin.kube import KubeClient
from kubeletplugin.kubeconfig import KubeConfigError

log = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean stop, 1 with the reason in the log."""
    try:
        prepare_hardware(settings)
        asyncio.run(_serve(settings))
    except (DriverError, KubeConfigError, OSError, ValueError, RuntimeError) as error:
        log.error("%s", error)
        return 1
    return 0


def prepare_hardware(settings: Settings) -> None:
    """Point NVML at the simulator, or at the library below the driver root.

    Raises:
        ValueError: ``--simulate`` names no profile, or the folder holds other cards.
        NvmlMissingError: never; a node without NVML says so in its readiness.
    """
    if settings.simulate:
        simulate(settings.simulate, settings.simulate_root, settings.node_name)
        return
    with contextlib.suppress(DriverError):
        load_library(settings.driver_root)


def simulate(what: str, root: Path, node: str) -> None:
    """Make (or take up again) simulated hardware in ``root`` and let pynvml talk to it.

    UUIDs follow from the node's name, so that two simulated nodes never have the same card.
    """
    from driver.sim.profiles import parse_simulate  # noqa: PLC0415 - only simulated nodes pay
    from driver.sim.seam import install  # noqa: PLC0415
    from driver.sim.setup import create  # noqa: PLC0415

    profile, count = parse_simulate(what)
    create(root, profile, count, seed=zlib.crc32(node.encode()))
    install(root)


async def _serve(settings: Settings) -> None:
    async with KubeClient.from_environment(settings.kubeconfig) as client:
        daemon = NodeDaemon(settings, client, Nvml())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.stop.set)
        await daemon.run()
