"""A node's ResourceSlices without a node: simulated cards, enumerated as real ones are."""

import tempfile
from pathlib import Path
from typing import Any

from api.policy import NodePolicy
from driver.hw.card import Cards
from driver.hw.nvml import Nvml
from driver.main import simulate
from driver.model.gpu import Inventory
from driver.model.shares import MpsFacts, SharingFacts
from driver.plan.allocatable import allocatable
from driver.plan.partitions import is_media_variant
from driver.plan.resources import driver_resources
from driver.sim import control
from driver.sim.profiles import PROFILES, known
from driver.sim.seam import uninstall
from kubeletplugin.plan_publish import Identity, plan_publish

# What a node with the MPS supervisor has: a control program of before R615.
SHARING = SharingFacts(mps=MpsFacts(multi_user=True), intervals=True)


def inventory(profile: str, count: int, node: str, *, mig_mode: bool = False) -> Inventory:
    """What the driver finds on a node of ``count`` cards, in MIG mode or not. The UUIDs
    follow from ``node``, as for ``aliquot node run --simulate``.

    Raises:
        ValueError: unknown profile, or a count that is not 1 to 512.
    """
    with tempfile.TemporaryDirectory(prefix="aliquot-render-") as folder:
        simulate(f"{profile}:{count}", Path(folder), node)
        if mig_mode and PROFILES[profile].mig_capable:
            for index in range(count):
                control.set_mig_mode(Path(folder), index, on=True)
        nvml = Nvml()
        try:
            nvml.open()
            return Cards(nvml, Path(folder)).discover()
        finally:
            nvml.close()
            uninstall()


def mig_profiles(board: str) -> list[str]:
    """Names of the partitions that a board can be cut into, smallest first.

    Raises:
        ValueError: unknown board.
    """
    if board not in PROFILES:
        raise ValueError(f"no profile {board!r}; known: {known()}")
    rows = PROFILES[board].gpu_instance_profiles
    ordered = sorted(
        rows, key=lambda row: (is_media_variant(row.name), row.memory_mib, row.slices)
    )
    return [row.name for row in ordered]


def resource_slices(
    found: Inventory, policy: NodePolicy, features: frozenset[str], owner: Identity
) -> list[dict[str, Any]]:
    """The objects that the plugin would create on a cluster that has none of them."""
    devices = allocatable(found, policy, features=features, sharing=SHARING)
    desired = driver_resources(devices, found, {}, pool=owner.node_name, features=features)
    return list(plan_publish(desired, [], owner).create)
