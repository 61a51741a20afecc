"""What NVML answers, as values; and the names behind its numbers."""

from dataclasses import dataclass

from driver.errors import HardwareError
from driver.model.ids import PciAddress
from driver.model.units import Bytes

# nvmlBrandType_t, spelled as NVIDIA's own drivers publish it (go-nvlib).
BRANDS: dict[int, str] = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}

# nvmlDeviceArchitecture_t.
ARCHITECTURES: dict[int, str] = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

# NVML_DEVICE_ADDRESSING_MODE_*.
_ADDRESSING_MODES: dict[int, str] = {0: "None", 1: "HMM", 2: "ATS"}

# CUDA cores per multiprocessor by compute capability: _ConvertSMVer2Cores in helper_cuda.h of
# NVIDIA/cuda-samples, the same as FP32 results per clock in the CUDA C++ Programming Guide.
_CORES_PER_SM: dict[tuple[int, int], int] = {
    (5, 0): 128,
    (5, 2): 128,
    (6, 0): 64,
    (6, 1): 128,
    (7, 0): 64,
    (7, 5): 64,
    (8, 0): 64,
    (8, 6): 128,
    (8, 9): 128,
    (9, 0): 128,
    (10, 0): 128,
    (10, 3): 128,
    (12, 0): 128,
    (12, 1): 128,
}


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """``nvmlDeviceGetMemoryInfo``."""

    total: Bytes
    reserved: Bytes  # 0 where the library does not tell


@dataclass(frozen=True, slots=True)
class Link:
    """One active NVLink."""

    version: tuple[int, int] | None
    to_switch: bool
    peer: PciAddress | None  # the card at the other end; None for switches and where not told


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """``nvmlGpuInstanceProfileInfo_t``: what a GPU instance of this profile has."""

    enum: int
    id: int
    name: str  # empty where the library has no version 2
    compute_slices: int
    instances: int
    memory_mib: int
    multiprocessors: int
    copy: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int


@dataclass(frozen=True, slots=True)
class RawEvent:
    """``nvmlEventData_t``; the device is a handle, dead when the card is."""

    device: object
    is_xid: bool
    data: int
    gpu_instance: int | None
    compute_instance: int | None


def addressing_mode_name(mode: int) -> str | None:
    """ "HMM", "ATS" or "None"; None for a value newer than this code."""
    return _ADDRESSING_MODES.get(mode)


# nvmlNvlinkVersion_t counts versions; what is published is the version itself.
_NVLINK_VERSIONS = {
    1: (1, 0),
    2: (2, 0),
    3: (2, 2),
    4: (3, 0),
    5: (3, 1),
    6: (4, 0),
    7: (5, 0),
    8: (6, 0),
}


def nvlink_version(code: int | None) -> tuple[int, int] | None:
    """``nvmlDeviceGetNvLinkVersion``'s answer as a version; None for one that is not known."""
    return None if code is None else _NVLINK_VERSIONS.get(int(code))


def pci_address(bus_id: str) -> PciAddress:
    """``"00000000:3B:00.0"``, as NVML writes it, as the kernel does: ``"0000:3b:00.0"``.

    Raises HardwareError where it has another form.
    """
    domain, _, rest = bus_id.partition(":")
    try:
        return PciAddress(f"{int(domain, 16):04x}:{rest.lower()}")
    except ValueError as error:
        raise HardwareError(
            "nvmlDeviceGetPciInfo", f"bus id {bus_id!r} found, domain:bus:device.function wanted"
        ) from error


def multiprocessors(cores: int, compute_capability: tuple[int, int]) -> int | None:
    """SMs of a card with ``cores`` CUDA cores; None for an unknown architecture."""
    per_sm = _CORES_PER_SM.get(compute_capability)
    return cores // per_sm if per_sm and cores % per_sm == 0 else None


def cluster_uuid(raw: bytes) -> str | None:
    """16 bytes as ``"8-4-4-4-12"``; None for all zero, which a single node's fabric reports and
    which would join every such node into one cluster."""
    text = raw.hex()
    if not raw.strip(b"\0"):
        return None
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
