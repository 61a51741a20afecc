"""What a card is: identity, product, memory, PCI, modes and processes."""

from typing import Any

from driver.sim.nvml.codes import INVALID_ARGUMENT, NOT_SUPPORTED, Refused
from driver.sim.nvml.cvalues import (
    check_version,
    fill,
    number,
    put,
    put_text,
    room,
    target,
)
from driver.sim.nvml.registry import AFTER_535, symbol
from driver.sim.nvml.session import Gpu
from driver.sim.profiles import Profile
from driver.sim.world import GpuInstance, Process

MIB = 1 << 20
NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
COMPUTE_DEFAULT, COMPUTE_PROHIBITED, COMPUTE_EXCLUSIVE_PROCESS = 0, 2, 3
_MEMORY_V2 = 0x02000028
_ADDRESSING_V1 = 0x01000008
_PCI_EXT_V1 = 0x01000040


@symbol("nvmlDeviceGetUUID", mig=True)
def _uuid(gpu: Gpu, buffer: Any, size: Any) -> int:
    return put_text(buffer, size, gpu.compute.uuid if gpu.compute else gpu.card.uuid)


@symbol("nvmlDeviceGetName", mig=True)
def _name(gpu: Gpu, buffer: Any, size: Any) -> int:
    """A MIG device adds the profile, as ``nvidia-smi -L`` shows it."""
    profile = gpu.profile.by_id(gpu.part.profile_id) if gpu.part else None
    tail = f" MIG {profile.name}" if profile else ""
    return put_text(buffer, size, gpu.profile.product + tail)


@symbol("nvmlDeviceGetIndex")
def _index(gpu: Gpu, out: Any) -> int:
    return put(out, gpu.index)


@symbol("nvmlDeviceGetMinorNumber")
def _minor(gpu: Gpu, out: Any) -> int:
    return put(out, gpu.minor)


@symbol("nvmlDeviceGetBrand")
def _brand(gpu: Gpu, out: Any) -> int:
    return put(out, gpu.profile.brand)


@symbol("nvmlDeviceGetArchitecture")
def _architecture(gpu: Gpu, out: Any) -> int:
    return put(out, gpu.profile.architecture)


@symbol("nvmlDeviceGetCudaComputeCapability")
def _capability(gpu: Gpu, major: Any, minor: Any) -> int:
    return put(major, gpu.profile.compute_capability[0]) or put(
        minor, gpu.profile.compute_capability[1]
    )


@symbol("nvmlDeviceGetNumGpuCores")
def _cores(gpu: Gpu, out: Any) -> int:
    return put(out, gpu.profile.multiprocessors * gpu.profile.cores_per_multiprocessor)


@symbol("nvmlDeviceGetMemoryInfo", mig=True)
def _memory(gpu: Gpu, out: Any) -> int:
    """Version 1 counts what the driver reserves as used."""
    total, reserved, used = _memory_of(gpu)
    taken = reserved + used
    fill(target(out), ("total", "free", "used"), (total, total - taken, taken))
    return 0


@symbol("nvmlDeviceGetMemoryInfo_v2", mig=True)
def _memory_v2(gpu: Gpu, out: Any) -> int:
    struct = target(out)
    check_version(struct, _MEMORY_V2)
    total, reserved, used = _memory_of(gpu)
    values = (total, reserved, total - reserved - used, used)
    fill(struct, ("total", "reserved", "free", "used"), values)
    return 0


def _memory_of(gpu: Gpu) -> tuple[int, int, int]:
    """Total, reserved and used bytes of the card or MIG device."""
    total, reserved = gpu.profile.memory_mib * MIB, gpu.profile.reserved_mib * MIB
    if gpu.part is not None:
        total, reserved = part_memory_mib(gpu.profile, gpu.part) * MIB, 0
    used = sum(process.memory or 0 for process in _processes(gpu))
    return total, reserved, min(used, total - reserved)


def part_memory_mib(board: Profile, part: GpuInstance) -> int:
    """Total of a MIG device: a little more than its profile says, by placement (MIG guide)."""
    profile = board.by_id(part.profile_id)
    return (profile.memory_mib if profile else 0) + (256 if part.start == 0 else 128)


@symbol("nvmlDeviceGetPciInfo_v3")
def _pci(gpu: Gpu, out: Any) -> int:
    pci = gpu.card.pci
    struct = target(out)
    fill(struct, ("domain", "bus", "device"), (pci.domain, pci.bus, pci.device))
    struct.busId = pci.nvml
    struct.busIdLegacy = pci.legacy
    struct.pciDeviceId = gpu.profile.pci_device_id
    struct.pciSubSystemId = gpu.profile.pci_subsystem_id
    return 0


@symbol("nvmlDeviceGetPciInfoExt", since=AFTER_535)
def _pci_ext(gpu: Gpu, out: Any) -> int:
    pci = gpu.card.pci
    struct = target(out)
    check_version(struct, _PCI_EXT_V1)
    fill(struct, ("domain", "bus", "device"), (pci.domain, pci.bus, pci.device))
    fill(struct, ("baseClass", "subClass"), (0x03, 0x02))  # 3D controller
    struct.busId = pci.nvml
    struct.pciDeviceId = gpu.profile.pci_device_id
    struct.pciSubSystemId = gpu.profile.pci_subsystem_id
    return 0


@symbol("nvmlDeviceGetMaxPcieLinkGeneration")
@symbol("nvmlDeviceGetGpuMaxPcieLinkGeneration")
def _pcie_generation(gpu: Gpu, out: Any) -> int:
    return put(out, gpu.profile.pcie_generation)


@symbol("nvmlDeviceGetMaxPcieLinkWidth")
@symbol("nvmlDeviceGetCurrPcieLinkWidth")
def _pcie_width(gpu: Gpu, out: Any) -> int:
    return put(out, gpu.profile.pcie_width)


@symbol("nvmlDeviceGetCurrPcieLinkGeneration")
def _pcie_current(gpu: Gpu, out: Any) -> int:
    """Idle cards of some models slow their link down."""
    idle = gpu.profile.idle_pcie_generation
    busy = bool(gpu.state.processes) or idle is None
    return put(out, gpu.profile.pcie_generation if busy else (idle or 0))


@symbol("nvmlDeviceGetNumaNodeId", since=AFTER_535)
def _numa_node_of_memory(_gpu: Gpu, _out: Any) -> int:
    """The node of the card's own memory: only where it is coherent (Grace), so never here."""
    return NOT_SUPPORTED


@symbol("nvmlDeviceGetAddressingMode", since=AFTER_535)
def _addressing(gpu: Gpu, out: Any) -> int:
    struct = target(out)
    check_version(struct, _ADDRESSING_V1)
    struct.value = gpu.profile.addressing_mode
    return 0


@symbol("nvmlDeviceGetVirtualizationMode")
def _virtualization(_gpu: Gpu, out: Any) -> int:
    return put(out, 0)  # NVML_GPU_VIRTUALIZATION_MODE_NONE: bare metal


@symbol("nvmlDeviceGetPersistenceMode")
def _persistence(_gpu: Gpu, out: Any) -> int:
    return put(out, 1)


@symbol("nvmlDeviceGetUtilizationRates")
def _utilization(gpu: Gpu, out: Any) -> int:
    """Busy with any process; NOT_SUPPORTED in MIG mode (nvml.h)."""
    if gpu.state.mig_current:
        return NOT_SUPPORTED
    total, _, used = _memory_of(gpu)
    busy = 100 if gpu.state.processes else 0
    fill(target(out), ("gpu", "memory"), (busy, 100 * used // total))
    return 0


@symbol("nvmlDeviceGetComputeMode")
def _compute_mode(gpu: Gpu, out: Any) -> int:
    return put(out, gpu.state.compute_mode)


@symbol("nvmlDeviceSetComputeMode", privileged=True)
def _set_compute_mode(gpu: Gpu, mode: Any) -> int:
    """EXCLUSIVE_PROCESS is refused in MIG mode; EXCLUSIVE_THREAD is gone from NVML."""
    wanted = number(mode)
    if wanted not in {COMPUTE_DEFAULT, COMPUTE_PROHIBITED, COMPUTE_EXCLUSIVE_PROCESS}:
        return NOT_SUPPORTED if wanted == 1 else INVALID_ARGUMENT
    if wanted == COMPUTE_EXCLUSIVE_PROCESS and gpu.state.mig_current:
        return NOT_SUPPORTED
    with gpu.session.store.update() as world:
        world.change(gpu.index).compute_mode = wanted
    return 0


@symbol("nvmlDeviceGetComputeRunningProcesses_v3", mig=True)
def _compute_processes(gpu: Gpu, count: Any, array: Any) -> int:
    return _list_processes(gpu, "compute", count, array)


@symbol("nvmlDeviceGetGraphicsRunningProcesses_v3", mig=True)
def _graphics_processes(gpu: Gpu, count: Any, array: Any) -> int:
    return _list_processes(gpu, "graphics", count, array)


@symbol("nvmlDeviceGetMPSComputeRunningProcesses_v3", mig=True)
def _mps_processes(gpu: Gpu, count: Any, array: Any) -> int:
    return _list_processes(gpu, "mps", count, array)


def _list_processes(gpu: Gpu, kind: str, count: Any, array: Any) -> int:
    found = [process for process in _processes(gpu) if process.kind == kind]
    rows = room(count, array, len(found))
    for row, process in enumerate(found):
        entry = rows[row]
        entry.pid = process.pid
        entry.usedGpuMemory = NOT_AVAILABLE if process.memory is None else process.memory
        entry.gpuInstanceId = process.gpu_instance
        entry.computeInstanceId = process.compute_instance
    return 0


def _processes(gpu: Gpu) -> list[Process]:
    """Those of the card, or of the MIG device."""
    if gpu.part is None or gpu.compute is None:
        return gpu.state.processes
    place = gpu.part.id, gpu.compute.id
    return [p for p in gpu.state.processes if (p.gpu_instance, p.compute_instance) == place]


@symbol("nvmlDeviceIsMigDeviceHandle", mig=True)
def _is_mig(gpu: Gpu, out: Any) -> int:
    return put(out, int(gpu.compute is not None))


def need(condition: bool) -> None:
    """NOT_SUPPORTED unless the card has it."""
    if not condition:
        raise Refused(NOT_SUPPORTED)
