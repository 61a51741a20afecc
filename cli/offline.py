"""A node's ResourceSlices without a node: simulated cards, enumerated as real ones are."""

import tempfile
from pathlib import Path
from typing import Any

from api.policy import NodePolicy
from driver.hw.card import Cards
from driver.hw.nvml import Nvml
from driver.main import simulate
from driver.model.gpu import Inventory
from driver.plan.allocatable import allocatable
from driver.plan.resources import driver_resources
from driver.sim.seam import uninstall
from kubeletplugin.plan_publish import Identity, plan_publish
from kubeletplugin.probe import COUNTERS


def inventory(profile: str, count: int, node: str) -> Inventory:
    """What the driver finds on a node of ``count`` cards. The UUIDs follow from ``node``, as for
    ``aliquot node run --simulate``.

    Raises:
        ValueError: unknown profile, or a count that is not 1 to 512.
    """
    with tempfile.TemporaryDirectory(prefix="aliquot-render-") as folder:
        simulate(f"{profile}:{count}", Path(folder), node)
        nvml = Nvml()
        try:
            nvml.open()
            return Cards(nvml, Path(folder)).discover()
        finally:
            nvml.close()
            uninstall()


def resource_slices(
    found: Inventory, policy: NodePolicy, features: frozenset[str], owner: Identity
) -> list[dict[str, Any]]:
    """The objects that the plugin would create on a cluster that has none of them."""
    devices = allocatable(found, policy, counters=COUNTERS in features)
    desired = driver_resources(devices, found, {}, pool=owner.node_name, features=features)
    return list(plan_publish(desired, [], owner).create)
