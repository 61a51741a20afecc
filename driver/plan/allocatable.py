"""Which devices the node offers, and in which order."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import assert_never

from api.policy import NodePolicy
from driver.model.devices import Device, MigPartition, MpsGpu, TimeSlicedGpu, WholeGpu
from driver.model.gpu import Gpu, Inventory
from driver.model.ids import GpuUuid
from driver.model.shares import SharingFacts
from driver.plan.kinds import device_type
from driver.plan.layout import COUNTERS, EVERYTHING, offered_modes
from driver.plan.names import device_names
from driver.plan.partitions import Adopted, may_toggle, partitions, rule_of, whole_toggle
from driver.plan.sharing import NO_SHARING, shared_devices
from driver.plan.topology import nvlink_groups, pci_order

NOTHING_ADOPTED = Adopted()


def allocatable(
    inventory: Inventory,
    policy: NodePolicy,
    adopted: Adopted = NOTHING_ADOPTED,
    *,
    features: Set[str] = EVERYTHING,
    sharing: SharingFacts = NO_SHARING,
) -> tuple[Device, ...]:
    """The devices to publish, in the order in which the scheduler shall take them.

    ``policy`` is the one of this node (``NodePolicy.for_node``), ``adopted`` the partitions to
    offer as they are, ``features`` what the cluster can do (``layout.cluster_features``).
    Without counters nothing keeps a card from being given out twice, so it is offered in one
    shape: whole, shared, or as what exists on it.
    """
    modes = {
        gpu.uuid: offered_modes(rule_of(gpu, policy).modes, features, mps=sharing.mps is not None)
        for gpu in inventory.gpus
    }
    return tuple(
        device
        for device in node_devices(inventory, policy, adopted, sharing)
        if _offered(device, policy, adopted, modes[device.gpu.uuid], COUNTERS in features)
    )


def node_devices(
    inventory: Inventory,
    policy: NodePolicy,
    adopted: Adopted = NOTHING_ADOPTED,
    sharing: SharingFacts = NO_SHARING,
) -> tuple[Device, ...]:
    """Every device that the node could have, offered or not: what a claim may hold."""
    names = device_names(gpu.uuid for gpu in inventory.gpus)
    wholes = (
        WholeGpu(names[gpu.uuid], gpu, whole_toggle(gpu, rule_of(gpu, policy)))
        for gpu in whole_order(inventory.gpus, nvlink_groups(inventory))
    )
    shared = shared_devices(inventory, policy, sharing)
    return (*wholes, *shared, *partitions(inventory.gpus, names, policy, adopted))


def whole_order(gpus: Sequence[Gpu], groups: Mapping[GpuUuid, str]) -> tuple[Gpu, ...]:
    """Cards in the order in which claims for whole ones shall use them up.

    The scheduler takes the first device that fits. Whole cards go from the last PCI address
    downward, because shares and small partitions fill cards from the first upward: so the two
    meet late, and neither breaks into cards that the other wants. Before that counts the size of
    the NVLink group, small ones first, and a group's cards stand together: a claim for one card
    takes one without partners if there is one, and else breaks a group that is broken already
    rather than a second one, so that claims for several linked cards still find whole groups.
    """
    ordered = sorted(gpus, key=lambda gpu: pci_order(gpu.pci), reverse=True)
    last = {_group(gpu, groups): i for i, gpu in reversed(list(enumerate(ordered)))}
    size = Counter(_group(gpu, groups) for gpu in ordered)
    return tuple(
        sorted(ordered, key=lambda gpu: (size[_group(gpu, groups)], last[_group(gpu, groups)]))
    )


def _group(gpu: Gpu, groups: Mapping[GpuUuid, str]) -> str:
    return groups.get(gpu.uuid, gpu.uuid)


def _offered(
    device: Device,
    policy: NodePolicy,
    adopted: Adopted,
    modes: Set[str],
    counters: bool,
) -> bool:
    """Whether policy and MIG mode allow it. A card in MIG mode cannot be used whole
    (dra-driver-nvidia-gpu#719), and one that is not has no partitions, unless a claim may
    change the mode."""
    gpu, rule = device.gpu, rule_of(device.gpu, policy)
    taken = adopted.of(gpu.uuid)
    in_mig_mode = gpu.mig_mode is not None and gpu.mig_mode.current
    match device:
        case WholeGpu() | MpsGpu() | TimeSlicedGpu():
            usable = not in_mig_mode or may_toggle(gpu, rule)
            return device_type(device) in modes and usable and not taken
        case MigPartition(adopted=True):
            return rule.adopt_existing
        case MigPartition(toggle=toggle, placement=placement):
            free = not any(placement.overlaps(other) for _, other in taken)
            return "mig" in modes and counters and free and (in_mig_mode or toggle)
        case _:
            assert_never(device)
