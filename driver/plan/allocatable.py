"""Which devices the node offers, and in which order."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from api.policy import NodePolicy
from driver.model.devices import Device, WholeGpu
from driver.model.gpu import Gpu, Inventory
from driver.model.ids import GpuUuid
from driver.plan.names import device_names
from driver.plan.topology import nvlink_groups, pci_order


def allocatable(
    inventory: Inventory, policy: NodePolicy, held: Set[GpuUuid] = frozenset()
) -> tuple[Device, ...]:
    """The devices to publish, in the order in which the scheduler shall take them.

    ``policy`` is the one of this node (``NodePolicy.for_node``). Cards of ``held`` carry a
    prepared claim and stay whatever the policy says now: a device that has an allocation is
    never withdrawn. A card in MIG mode cannot be used whole (dra-driver-nvidia-gpu#719).
    """
    names = device_names(gpu.uuid for gpu in inventory.gpus)
    return tuple(
        WholeGpu(names[gpu.uuid], gpu)
        for gpu in whole_order(inventory.gpus, nvlink_groups(inventory))
        if gpu.uuid in held or _offered_whole(gpu, policy)
    )


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


def _offered_whole(gpu: Gpu, policy: NodePolicy) -> bool:
    in_mig_mode = gpu.mig_mode is not None and gpu.mig_mode.current
    return not in_mig_mode and "gpu" in policy.for_gpu(gpu.uuid, gpu.product, gpu.pci).modes
