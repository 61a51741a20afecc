"""What the hardware said of itself: facts, read once and passed on as values."""

from dataclasses import dataclass, field
from enum import Enum

from driver.model.ids import ClaimUid, GpuUuid, PciAddress
from driver.model.units import Bytes


class ComputeMode(Enum):
    """``nvmlComputeMode_t``; the value 1 (EXCLUSIVE_THREAD) is gone from NVML."""

    DEFAULT = 0
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


@dataclass(frozen=True, slots=True)
class MigMode:
    """``nvmlDeviceGetMigMode``: the two differ while a card waits for its reset."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class Nvlink:
    """NVLink of one card, from ``nvmlDeviceGetNvLinkState`` and its remote PCI addresses."""

    active_links: int  # >= 1; a card without active links has no Nvlink value
    version: tuple[int, int] | None  # (4, 0) on Hopper; None where NVML does not tell
    switched: bool  # True: the links end in NVSwitches (HGX)
    peers: frozenset[PciAddress]  # direct links to other cards of the node


@dataclass(frozen=True, slots=True)
class Fabric:
    """Multi-node NVLink (``nvmlDeviceGetGpuFabricInfoV``), only where the state is COMPLETED."""

    cluster_uuid: str
    clique_id: int


@dataclass(frozen=True, slots=True)
class Engines:
    """Counts for the whole card; None where NVML does not tell."""

    copy: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg: int | None = None
    ofa: int | None = None


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One kind of partition that a card offers (``nvmlGpuInstanceProfileInfo_v2_t``).

    ``enum`` and ``id`` are different numbers: only the profile info takes the enum. What a profile
    has differs between driver branches for the same board: it is read, never looked up in a table.
    """

    name: str  # "1g.10gb", "1g.10gb+me"
    enum: int  # NVML_GPU_INSTANCE_PROFILE_*
    id: int  # what creating and listing instances take
    slices: int  # GPU slices: compute
    memory: Bytes
    multiprocessors: int
    engines: Engines
    size: int  # memory slices
    starts: tuple[int, ...]  # possible placements, in memory slices
    instances: int  # at most so many at once, whatever is free


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical card. Optional fields are None where NVML or sysfs does not tell."""

    uuid: GpuUuid
    pci: PciAddress
    minor: int  # /dev/nvidia<minor>; changes over reboots: never for names or records
    product: str  # "NVIDIA H100 80GB HBM3"
    brand: str  # "Nvidia", "Tesla", …
    architecture: str  # "Hopper"
    compute_capability: tuple[int, int]
    memory: Bytes  # total; 0 where the card shares the host's (GB10)
    reserved: Bytes  # taken by the driver itself (nvmlMemory_v2_t.reserved)
    multiprocessors: int | None = None
    engines: Engines = field(default_factory=Engines)
    mig_mode: MigMode | None = None  # None: not MIG capable
    mig_profiles: tuple[MigProfile, ...] = ()  # empty also on Ampere while its MIG mode is off
    ecc_enabled: bool | None = None
    addressing_mode: str | None = None  # "HMM", "ATS", "None"
    numa_node: int | None = None  # None also for the kernel's -1
    pcie_root: str | None = None  # "pci0000:00"
    pcie_generation: int | None = None  # the card's maximum, not the current one
    pcie_width: int | None = None  # the card's maximum
    nvlink: Nvlink | None = None
    fabric: Fabric | None = None


@dataclass(frozen=True, slots=True)
class UnreadableGpu:
    """A card that NVML counts but cannot describe. It never hides the others."""

    index: int
    pci: PciAddress | None
    problem: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The node's cards, sorted by PCI address (never by enumeration index)."""

    driver_version: str  # "580.105.08", as NVML spells it
    cuda_driver_version: tuple[int, int]  # (13, 0)
    gpus: tuple[Gpu, ...]
    unreadable: tuple[UnreadableGpu, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node as a container needs it."""

    path: str  # inside the container: "/dev/nvidia0"
    host_path: str | None  # on the host, below the driver root; None: the runtime makes the node
    numbers: tuple[int, int] | None = None  # major and minor, where there is no host_path
    mode: int | None = None  # permission bits of a node that the runtime makes


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on the card (``nvmlDeviceGetComputeRunningProcesses``)."""

    pid: int
    memory: Bytes | None
    gpu_instance: int | None = None  # where in a card in MIG mode
    name: str = ""  # of its program, where that was asked for
    claim: ClaimUid | None = None  # whose it is, where that was found out
