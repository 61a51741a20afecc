"""Numbers of real boards, as published outputs of nvidia-smi and NVML show them.

Sources: the project's hardware reference (outputs of ``nvidia-smi -q -x``, ``mig -lgip`` and
``mig -lgipp`` of real boards). What no output shows is filled by a stated rule, and the name of
each field filled that way is in ``Profile.derived`` (``"gi:<enum>"``: a whole profile row).

The rules of the derived values:

- reserved memory: the share of the nearest board of the same architecture;
- multiprocessors, NVLink and PCIe numbers: NVIDIA's data sheets;
- L4 memory: half an L40S (data sheets: 24 GB against 48 GB, the same memory overhead);
- B200 3g, 4g, 7g: multiprocessors in proportion to H100 (148 to 132), rounded to the nearest even
  number (a TPC has two): this gives the four published B200 rows; copy engines twice and media
  engines as on H100; 3g and 4g memory twice that of 2g; 7g memory as on every Hopper board: the
  total rounded down to 128 MiB, less 384 MiB.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HOPPER = 9  # NVML_DEVICE_ARCH_HOPPER; MIG mode needs no reset from here on


@dataclass(frozen=True, slots=True)
class ComputeInstanceProfile:
    """A compute instance profile inside one GPU instance profile; its id equals its enum."""

    profile: int  # NVML_COMPUTE_INSTANCE_PROFILE_*
    name: str
    slices: int
    instances: int


@dataclass(frozen=True, slots=True)
class GpuInstanceProfile:
    """One row of ``nvidia-smi mig -lgip``. ``profile`` is the enum, ``id`` the driver's id."""

    profile: int  # NVML_GPU_INSTANCE_PROFILE_*
    id: int
    name: str
    slices: int
    instances: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int
    starts: tuple[int, ...]  # possible placements, in memory slices
    size: int

    def compute_profiles(self) -> tuple[ComputeInstanceProfile, ...]:
        """The compute instance profiles; a 4-slice instance has no 3-slice one."""
        sizes = [c for c in _CI_ENUM if c <= self.slices and (self.slices, c) != (4, 3)]
        return tuple(
            ComputeInstanceProfile(
                profile=_CI_ENUM[c],
                name=self.name if c == self.slices else f"{c}c.{self.name}",
                slices=c,
                instances=self.slices // c,
            )
            for c in sizes
        )


@dataclass(frozen=True, slots=True)
class Links:
    """NVLink of one card. ``switched``: to NVSwitches; else to the other card of its pair."""

    count: int
    version: int  # NVML_NVLINK_VERSION_*
    switched: bool
    switches: int = 0
    switch_device_id: int = 0  # PCI device and vendor of the NVSwitch


@dataclass(frozen=True, slots=True)
class Profile:
    """One model of card. Memory in MiB."""

    key: str
    product: str
    architecture: int  # NVML_DEVICE_ARCH_*
    compute_capability: tuple[int, int]
    memory_mib: int
    reserved_mib: int
    multiprocessors: int
    cores_per_multiprocessor: int
    pci_device_id: int  # device in the upper, vendor in the lower half
    pci_subsystem_id: int
    pcie_generation: int
    pcie_width: int = 16
    idle_pcie_generation: int | None = None  # cards that slow their link down without work
    brand: int = 14  # NVML_BRAND_NVIDIA
    addressing_mode: int = 1  # NVML_DEVICE_ADDRESSING_MODE_HMM
    links: Links | None = None
    memory_slices: int = 0
    gpu_instance_profiles: tuple[GpuInstanceProfile, ...] = ()
    row_remapping: bool = True  # else page retirement (before Ampere)
    fabric: bool = False  # takes part in a multi-node NVLink fabric
    derived: frozenset[str] = frozenset()

    @property
    def mig_capable(self) -> bool:
        """True where ``nvmlDeviceGetMigMode`` answers."""
        return bool(self.gpu_instance_profiles)

    @property
    def mig_needs_reset(self) -> bool:
        """Ampere: the mode changes at a reset and survives a reboot; newer cards neither."""
        return self.architecture < HOPPER

    def by_enum(self, profile: int) -> GpuInstanceProfile | None:
        """The profile with this ``NVML_GPU_INSTANCE_PROFILE_*`` value."""
        return next((p for p in self.gpu_instance_profiles if p.profile == profile), None)

    def by_id(self, profile_id: int) -> GpuInstanceProfile | None:
        """The profile with this driver id."""
        return next((p for p in self.gpu_instance_profiles if p.id == profile_id), None)


_CI_ENUM: Mapping[int, int] = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}  # slices -> enum

_ALL7 = (0, 1, 2, 3, 4, 5, 6)
_ALL4 = (0, 1, 2, 3)
# enum -> (id, slices, instances, starts, size); the published -lgipp geometry
_SEVEN: Mapping[int, tuple[int, int, int, tuple[int, ...], int]] = {
    0: (19, 1, 7, _ALL7, 1),
    7: (20, 1, 1, _ALL7, 1),
    9: (15, 1, 4, (0, 2, 4, 6), 2),
    1: (14, 2, 3, (0, 2, 4), 2),
    2: (9, 3, 2, (0, 4), 4),
    3: (5, 4, 1, (0,), 4),
    4: (0, 7, 1, (0,), 8),
}
_FOUR: Mapping[int, tuple[int, int, int, tuple[int, ...], int]] = {
    0: (14, 1, 4, _ALL4, 1),
    7: (21, 1, 1, _ALL4, 1),
    1: (5, 2, 2, (0, 2), 2),
    8: (6, 2, 1, (0, 2), 2),
    3: (0, 4, 1, (0,), 4),
}

# (enum, name, memory MiB, multiprocessors, copy engines, decoders, encoders, jpeg, ofa)
_Row = tuple[int, str, int, int, int, int, int, int, int]


def _rows(
    geometry: Mapping[int, tuple[int, int, int, tuple[int, ...], int]], rows: Iterable[_Row]
) -> tuple[GpuInstanceProfile, ...]:
    made = []
    for enum, name, memory, sms, copy, decoders, encoders, jpeg, ofa in rows:
        profile_id, slices, instances, starts, size = geometry[enum]
        made.append(
            GpuInstanceProfile(
                profile=enum,
                id=profile_id,
                name=name,
                slices=slices,
                instances=instances,
                memory_mib=memory,
                multiprocessors=sms,
                copy_engines=copy,
                decoders=decoders,
                encoders=encoders,
                jpeg=jpeg,
                ofa=ofa,
                starts=starts,
                size=size,
            )
        )
    return tuple(made)


_A30 = (
    (0, "1g.6gb", 5836, 14, 1, 0, 0, 0, 0),
    (7, "1g.6gb+me", 5836, 14, 1, 1, 0, 1, 1),
    (1, "2g.12gb", 11672, 28, 2, 2, 0, 0, 0),
    (8, "2g.12gb+me", 11672, 28, 2, 2, 0, 1, 1),
    (3, "4g.24gb", 23344, 56, 4, 4, 0, 1, 1),
)
_A100_40 = (
    (0, "1g.5gb", 4864, 14, 1, 0, 0, 0, 0),
    (7, "1g.5gb+me", 4864, 14, 1, 1, 0, 1, 1),
    (9, "1g.10gb", 9856, 14, 1, 1, 0, 0, 0),
    (1, "2g.10gb", 9856, 28, 2, 1, 0, 0, 0),
    (2, "3g.20gb", 19968, 42, 3, 2, 0, 0, 0),
    (3, "4g.20gb", 19968, 56, 4, 2, 0, 0, 0),
    (4, "7g.40gb", 40192, 98, 7, 5, 0, 1, 1),
)
_A100_80 = (
    (0, "1g.10gb", 9728, 14, 1, 0, 0, 0, 0),
    (7, "1g.10gb+me", 9728, 14, 1, 1, 0, 1, 1),
    (9, "1g.20gb", 19968, 14, 1, 1, 0, 0, 0),
    (1, "2g.20gb", 19968, 28, 2, 1, 0, 0, 0),
    (2, "3g.40gb", 40192, 42, 3, 2, 0, 0, 0),
    (3, "4g.40gb", 40192, 56, 4, 2, 0, 0, 0),
    (4, "7g.80gb", 80896, 98, 7, 5, 0, 1, 1),
)
_H100 = (
    (0, "1g.10gb", 9984, 16, 1, 1, 0, 1, 0),
    (7, "1g.10gb+me", 9984, 16, 1, 1, 0, 1, 1),
    (9, "1g.20gb", 20096, 26, 1, 1, 0, 1, 0),
    (1, "2g.20gb", 20096, 32, 2, 2, 0, 2, 0),
    (2, "3g.40gb", 40448, 60, 3, 3, 0, 3, 0),
    (3, "4g.40gb", 40448, 64, 4, 4, 0, 4, 0),
    (4, "7g.80gb", 81152, 132, 8, 7, 0, 7, 1),
)
_H200 = (
    (0, "1g.18gb", 16384, 16, 1, 1, 0, 1, 0),
    (7, "1g.18gb+me", 16384, 16, 1, 1, 0, 1, 1),
    (9, "1g.35gb", 33024, 26, 1, 1, 0, 1, 0),
    (1, "2g.35gb", 33024, 32, 2, 2, 0, 2, 0),
    (2, "3g.71gb", 71168, 60, 3, 3, 0, 3, 0),
    (3, "4g.71gb", 71168, 64, 4, 4, 0, 4, 0),
    (4, "7g.141gb", 143360, 132, 8, 7, 0, 7, 1),
)
_B200 = (
    (0, "1g.23gb", 22528, 18, 2, 1, 0, 1, 0),
    (7, "1g.23gb+me", 22528, 18, 2, 1, 0, 1, 1),
    (9, "1g.45gb", 45312, 30, 2, 1, 0, 1, 0),
    (1, "2g.45gb", 45312, 36, 4, 2, 0, 2, 0),
    (2, "3g.90gb", 90624, 68, 6, 3, 0, 3, 0),
    (3, "4g.90gb", 90624, 72, 8, 4, 0, 4, 0),
    (4, "7g.180gb", 182912, 148, 16, 7, 0, 7, 1),
)

_SHEET = frozenset({"multiprocessors", "links", "pcie_generation"})
_A100_LINKS = Links(count=12, version=4, switched=True, switches=6, switch_device_id=0x1AF110DE)
_HOPPER_LINKS = Links(count=18, version=6, switched=True, switches=4, switch_device_id=0x22A310DE)
_B200_LINKS = Links(count=18, version=7, switched=True, switches=2, switch_device_id=0x290310DE)

BOARDS: tuple[Profile, ...] = (
    Profile(
        key="a30",
        product="NVIDIA A30",
        architecture=7,
        compute_capability=(8, 0),
        memory_mib=24576,
        reserved_mib=311,
        multiprocessors=56,
        cores_per_multiprocessor=64,
        pci_device_id=0x20B710DE,
        pci_subsystem_id=0x153210DE,
        pcie_generation=4,
        links=Links(count=4, version=5, switched=False),
        memory_slices=4,
        gpu_instance_profiles=_rows(_FOUR, _A30),
        derived=_SHEET | {"reserved_mib", "pci_subsystem_id", "addressing_mode"},
    ),
    Profile(
        key="a100-40gb",
        product="NVIDIA A100-SXM4-40GB",
        architecture=7,
        compute_capability=(8, 0),
        memory_mib=40960,
        reserved_mib=518,
        multiprocessors=108,
        cores_per_multiprocessor=64,
        pci_device_id=0x20B010DE,
        pci_subsystem_id=0x134F10DE,
        pcie_generation=4,
        links=_A100_LINKS,
        memory_slices=8,
        gpu_instance_profiles=_rows(_SEVEN, _A100_40),
        derived=_SHEET,
    ),
    Profile(
        key="a100-80gb",
        product="NVIDIA A100-SXM4-80GB",
        architecture=7,
        compute_capability=(8, 0),
        memory_mib=81920,
        reserved_mib=1036,
        multiprocessors=108,
        cores_per_multiprocessor=64,
        pci_device_id=0x20B210DE,
        pci_subsystem_id=0x147F10DE,
        pcie_generation=4,
        links=_A100_LINKS,
        memory_slices=8,
        gpu_instance_profiles=_rows(_SEVEN, _A100_80),
        derived=_SHEET | {"reserved_mib", "pci_subsystem_id", "addressing_mode"},
    ),
    Profile(
        key="h100-80gb",
        product="NVIDIA H100 80GB HBM3",
        architecture=HOPPER,
        compute_capability=(9, 0),
        memory_mib=81559,
        reserved_mib=480,
        multiprocessors=132,
        cores_per_multiprocessor=128,
        pci_device_id=0x233010DE,
        pci_subsystem_id=0x16C110DE,
        pcie_generation=5,
        links=_HOPPER_LINKS,
        memory_slices=8,
        gpu_instance_profiles=_rows(_SEVEN, _H100),
        fabric=True,
        derived=_SHEET,
    ),
    Profile(
        key="h200",
        product="NVIDIA H200",
        architecture=HOPPER,
        compute_capability=(9, 0),
        memory_mib=143771,
        reserved_mib=846,
        multiprocessors=132,
        cores_per_multiprocessor=128,
        pci_device_id=0x233510DE,
        pci_subsystem_id=0x18BE10DE,
        pcie_generation=5,
        links=_HOPPER_LINKS,
        memory_slices=8,
        gpu_instance_profiles=_rows(_SEVEN, _H200),
        fabric=True,
        derived=_SHEET | {"reserved_mib", "pci_subsystem_id", "addressing_mode"},
    ),
    Profile(
        key="b200",
        product="NVIDIA B200",
        architecture=10,
        compute_capability=(10, 0),
        memory_mib=183359,
        reserved_mib=728,
        multiprocessors=148,
        cores_per_multiprocessor=128,
        pci_device_id=0x290110DE,
        pci_subsystem_id=0x199910DE,
        pcie_generation=5,
        links=_B200_LINKS,
        memory_slices=8,
        gpu_instance_profiles=_rows(_SEVEN, _B200),
        fabric=True,
        derived=_SHEET | {"addressing_mode", "gi:2", "gi:3", "gi:4"},
    ),
    Profile(
        key="l4",
        product="NVIDIA L4",
        architecture=8,
        compute_capability=(8, 9),
        memory_mib=23034,
        reserved_mib=305,
        multiprocessors=58,
        cores_per_multiprocessor=128,
        pci_device_id=0x27B810DE,
        pci_subsystem_id=0x16CA10DE,
        pcie_generation=4,
        idle_pcie_generation=1,
        derived=_SHEET
        | {
            "product",
            "architecture",
            "compute_capability",
            "memory_mib",
            "reserved_mib",
            "pci_device_id",
            "pci_subsystem_id",
            "addressing_mode",
        },
    ),
    Profile(
        key="t4",
        product="Tesla T4",
        architecture=6,
        compute_capability=(7, 5),
        memory_mib=15360,
        reserved_mib=448,
        multiprocessors=40,
        cores_per_multiprocessor=64,
        pci_device_id=0x1EB810DE,
        pci_subsystem_id=0x12A210DE,
        pcie_generation=3,
        idle_pcie_generation=1,
        row_remapping=False,
        derived=_SHEET,
    ),
)
