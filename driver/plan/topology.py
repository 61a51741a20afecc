"""Which cards reach each other over NVLink, so that claims can keep them together."""

from collections.abc import Mapping, Sequence

from driver.model.gpu import Gpu, Inventory
from driver.model.ids import GpuUuid, PciAddress


def pci_order(pci: PciAddress) -> tuple[int, str]:
    """Sorts addresses by number, domains longer than four digits last."""
    return len(pci), pci


def nvlink_groups(inventory: Inventory) -> Mapping[GpuUuid, str]:
    """A value for each card that reaches every other card with the same value.

    Cards behind NVSwitches are one group, "nvswitch": a name that stays when one of them is
    lost. Where the node's fabric is split into cliques, each is a group of its own. Directly
    linked cards form groups only as far as all are linked with all (the hybrid cube of a DGX-1
    becomes two groups of four); such a group is named by its first PCI address. Both ends must
    report a link. A card without links to another has no value.
    """
    cards = sorted(inventory.gpus, key=lambda gpu: pci_order(gpu.pci))
    return _switched_groups(cards) | _direct_groups(cards)


def _switched_groups(cards: Sequence[Gpu]) -> dict[GpuUuid, str]:
    switched = [gpu for gpu in cards if gpu.nvlink and gpu.nvlink.switched]
    fabrics = {gpu.fabric for gpu in switched}
    if len(fabrics) <= 1:
        return {gpu.uuid: "nvswitch" for gpu in switched}
    first = {gpu.fabric: gpu.pci for gpu in reversed(switched)}
    return {gpu.uuid: f"nvswitch-{first[gpu.fabric]}" for gpu in switched}


def _direct_groups(cards: Sequence[Gpu]) -> dict[GpuUuid, str]:
    links = _links(cards)
    groups: dict[GpuUuid, str] = {}
    waiting = [gpu for gpu in cards if links[gpu.pci]]
    while waiting:
        group = [waiting[0]]
        for gpu in waiting[1:]:
            if all(member.pci in links[gpu.pci] for member in group):
                group.append(gpu)
        if len(group) > 1:
            groups |= {gpu.uuid: str(group[0].pci) for gpu in group}
        waiting = [gpu for gpu in waiting if gpu not in group]
    return groups


def _links(cards: Sequence[Gpu]) -> Mapping[PciAddress, frozenset[PciAddress]]:
    told = {
        gpu.pci: gpu.nvlink.peers if gpu.nvlink and not gpu.nvlink.switched else frozenset()
        for gpu in cards
    }
    return {
        pci: frozenset(peer for peer in peers if peer != pci and pci in told.get(peer, ()))
        for pci, peers in told.items()
    }
