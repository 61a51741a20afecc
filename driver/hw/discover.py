"""From NVML and sysfs to the node's inventory."""

from driver.errors import HardwareError, NotSupportedError, NvmlMissingError
from driver.hw.codes import optional
from driver.hw.links import active_links
from driver.hw.nvml import Handle, Nvml
from driver.hw.profiles import instance_profiles, mig_profiles
from driver.hw.readouts import Link, MemoryReading, multiprocessors
from driver.hw.sysfs import Sysfs
from driver.model.gpu import Engines, Gpu, Inventory, MigProfile, Nvlink, UnreadableGpu
from driver.model.ids import PciAddress
from driver.model.units import Bytes


def discover(nvml: Nvml, sysfs: Sysfs) -> Inventory:
    """Read every card. One that cannot be read becomes an UnreadableGpu and hides no other.

    Raises HardwareError (NvmlMissingError and others) only where NVML as a whole does not answer.
    """
    gpus: list[Gpu] = []
    unreadable: list[UnreadableGpu] = []
    for index in range(nvml.count()):
        try:
            gpus.append(_read_card(nvml, sysfs, index))
        except NvmlMissingError:
            raise
        except HardwareError as error:
            unreadable.append(UnreadableGpu(index, _address(nvml, index), str(error)))
    gpus.sort(key=lambda gpu: _bus_order(gpu.pci))
    return Inventory(
        driver_version=nvml.driver_version(),
        cuda_driver_version=nvml.cuda_driver_version(),
        gpus=tuple(gpus),
        unreadable=_placed(unreadable, gpus, sysfs),
    )


def unlisted(inventory: Inventory, sysfs: Sysfs) -> tuple[PciAddress, ...]:
    """NVIDIA cards on the PCI bus that NVML does not count, without those given to a virtual
    machine (vfio-pci). "No card in NVML, eight on the bus" must be said, not shown as an empty
    node (dra-driver-nvidia-gpu#1008)."""
    missing = _unclaimed(inventory.gpus, inventory.unreadable, sysfs)
    uncounted = len([card for card in inventory.unreadable if card.pci is None])
    return missing if len(missing) > uncounted else ()


def _read_card(nvml: Nvml, sysfs: Sysfs, index: int) -> Gpu:
    handle = nvml.handle_at(index)
    pci = nvml.pci(handle)
    capability = nvml.compute_capability(handle)
    cores = optional(lambda: nvml.cores(handle))
    memory = _memory(nvml, handle)
    mig_mode = optional(lambda: nvml.mig_mode(handle))
    uuid = nvml.uuid(handle)
    nvml.keep(uuid, handle)
    return Gpu(
        uuid=uuid,
        pci=pci,
        minor=nvml.minor(handle),
        product=nvml.product(handle),
        brand=optional(lambda: nvml.brand(handle)) or "Unknown",
        architecture=optional(lambda: nvml.architecture(handle)) or "Unknown",
        compute_capability=capability,
        memory=memory.total,
        reserved=memory.reserved,
        multiprocessors=None if cores is None else multiprocessors(cores, capability),
        engines=optional(lambda: _engines(handle)) or Engines(),
        mig_mode=mig_mode,
        mig_profiles=_mig_profiles(handle, memory.total) if mig_mode else (),
        ecc_enabled=optional(lambda: nvml.ecc_enabled(handle)),
        addressing_mode=optional(lambda: nvml.addressing_mode(handle)),
        numa_node=sysfs.numa_node(pci),
        pcie_root=sysfs.pcie_root(pci),
        pcie_generation=optional(lambda: nvml.max_pcie_generation(handle)),
        pcie_width=optional(lambda: nvml.max_pcie_width(handle)),
        nvlink=_nvlink(optional(lambda: active_links(handle)) or ()),
        fabric=optional(lambda: nvml.fabric(handle)),
    )


def _mig_profiles(handle: Handle, total: Bytes) -> tuple[MigProfile, ...]:
    """A card that does not tell its profiles is offered whole: one must not empty the node
    (dra-driver-nvidia-gpu#1092)."""
    return optional(lambda: mig_profiles(handle, total)) or ()


def _memory(nvml: Nvml, handle: Handle) -> MemoryReading:
    """Zero where the card shares the host's memory (GB10, Thor: KAI-Scheduler#1967). Any other
    refusal makes the card unreadable, because a card of no memory must not be offered."""
    try:
        return nvml.memory(handle)
    except NotSupportedError:
        return MemoryReading(Bytes(0), Bytes(0))


def _engines(handle: Handle) -> Engines | None:
    """The counts of the profile that spans the card: most compute slices, and id 0 among those."""
    profiles = instance_profiles(handle)
    if not profiles:
        return None
    whole = max(profiles, key=lambda profile: (profile.compute_slices, -profile.id))
    return Engines(
        copy=whole.copy,
        decoders=whole.decoders,
        encoders=whole.encoders,
        jpeg=whole.jpeg,
        ofa=whole.ofa,
    )


def _nvlink(links: tuple[Link, ...]) -> Nvlink | None:
    if not links:
        return None
    return Nvlink(
        active_links=len(links),
        version=max((link.version for link in links if link.version is not None), default=None),
        switched=any(link.to_switch for link in links),
        peers=frozenset(link.peer for link in links if link.peer is not None),
    )


def _address(nvml: Nvml, index: int) -> PciAddress | None:
    """Where the card sits, if NVML still says so much."""
    try:
        return nvml.pci(nvml.handle_at(index))
    except HardwareError:
        return None


def _placed(
    cards: list[UnreadableGpu], gpus: list[Gpu], sysfs: Sysfs
) -> tuple[UnreadableGpu, ...]:
    """If just one card does not tell its address and one on the bus is not accounted for, they
    are the same."""
    silent = [card for card in cards if card.pci is None]
    free = _unclaimed(gpus, cards, sysfs)
    if len(silent) == len(free) == 1:
        cards = [UnreadableGpu(one.index, one.pci or free[0], one.problem) for one in cards]
    return tuple(sorted(cards, key=lambda card: (_bus_order(card.pci), card.index)))


def _unclaimed(
    gpus: list[Gpu] | tuple[Gpu, ...],
    unreadable: list[UnreadableGpu] | tuple[UnreadableGpu, ...],
    sysfs: Sysfs,
) -> tuple[PciAddress, ...]:
    known = {gpu.pci for gpu in gpus} | {card.pci for card in unreadable}
    on_bus = (pci for pci in sysfs.nvidia_pci_functions() if pci not in known)
    return tuple(pci for pci in on_bus if sysfs.kernel_driver(pci) != "vfio-pci")


def _bus_order(pci: PciAddress | None) -> tuple[int, str]:
    """Domains may have more than four digits, so text order alone is wrong."""
    return (len(pci), pci) if pci is not None else (1 << 16, "")
