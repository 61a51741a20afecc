"""The one place that talks to NVML and knows its return codes.

Everything else sees plain values of ``driver.model`` and errors of ``driver.errors``.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NewType

import pynvml

from driver.errors import (
    DeviceBusyError,
    HardwareError,
    NoPermissionError,
    NotSupportedError,
    NvmlMissingError,
)
from driver.hw.codes import Return, error_of
from driver.hw.folders import find_library
from driver.hw.readouts import (
    ARCHITECTURES,
    BRANDS,
    MemoryReading,
    RawEvent,
    addressing_mode_name,
    cluster_uuid,
    pci_address,
)
from driver.model.gpu import ComputeMode, Fabric, GpuProcess, MigMode
from driver.model.ids import GpuUuid, PciAddress
from driver.model.units import Bytes

Handle = NewType("Handle", object)  # nvmlDevice_t; dies when the card or the driver goes
EventSet = NewType("EventSet", object)  # nvmlEventSet_t

MINIMUM_DRIVER = 525  # oldest branch with every call this driver cannot do without
LIBRARY = "libnvidia-ml.so.1"

_NOT_AN_INSTANCE = 0xFFFFFFFF  # nvmlEventData_t: the event belongs to the whole card

# What is worth waking up for, of what the card supports (nvml.h, nvmlEventType*).
_EVENT_TYPES: int = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)


@contextmanager
def nvml_call(name: str) -> Iterator[None]:
    """Raise our error for NVML's code, naming the call that was refused.

    A text that is not UTF-8 (a card that is dying) is a HardwareError too.
    """
    try:
        yield
    except pynvml.NVMLError as error:
        raise error_of(name, error.value) from error
    except UnicodeDecodeError as error:
        raise HardwareError(name, f"answered with bytes that are not UTF-8: {error}") from error


def load_library(driver_root: Path) -> None:
    """Make pynvml use the libnvidia-ml below ``driver_root``.

    Does nothing where a library is set already (the simulator). With the root ``/`` the dynamic
    loader is asked first, so ``LD_LIBRARY_PATH`` counts. Raises NvmlMissingError with every place
    that was tried.
    """
    if pynvml.nvmlLib is not None:
        return
    names = [LIBRARY] if driver_root == Path(driver_root.anchor) else []
    names += [str(path) for path in find_library(driver_root, LIBRARY)]
    refusals: list[str] = []
    for name in names:
        try:
            pynvml.nvmlLib = ctypes.CDLL(name)
        except OSError as error:
            refusals.append(str(error))
        else:
            return
    tried = "; ".join(refusals) or f"no {LIBRARY} in any library folder"
    raise NvmlMissingError(
        "load NVML",
        f"{tried} (below driver root {driver_root}); install the NVIDIA driver, or set the "
        "driver root to the folder under which it is mounted",
        Return.LIBRARY_NOT_FOUND,
    )


def ask(name: str, *args: Any) -> Any:
    """Call ``pynvml.<name>``, which has no types: for the readers in this package, which give the
    result one."""
    with nvml_call(name):
        return getattr(pynvml, name)(*args)


def _check_version(found: str) -> None:
    major = found.partition(".")[0]
    if not major.isdigit() or int(major) < MINIMUM_DRIVER:
        raise NvmlMissingError(
            "check the driver version",
            f"NVIDIA driver {found} found, {MINIMUM_DRIVER} or newer wanted; update the driver "
            "of the node",
        )


def struct(name: str, *values: int | bytes) -> Any:
    """A C struct of NVML by pynvml's name for it, to be passed with ``ctypes.byref``."""
    return getattr(pynvml, name)(*values)


def handle_array(name: str, count: int) -> Any:
    """Room for ``count`` values of pynvml's type ``name``, as calls that list things want it."""
    return (getattr(pynvml, name) * count)()


class Nvml:
    """NVML with types. Blocking; every method may be called from any thread.

    Handles are kept by UUID, because finding one was seen to take up to 10 s under load, and are
    dropped with ``forget`` or ``drop_handles``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._handles: dict[GpuUuid, Handle] = {}

    # Library -----------------------------------------------------------------------------

    def open(self) -> None:
        """Initialise NVML and check the driver version. Doing it twice is once.

        Raises NvmlMissingError where the library or the kernel driver is missing or too old.
        """
        with self._lock:
            if self._open:
                return
            ask("nvmlInit")
            try:
                _check_version(self.driver_version())
            except HardwareError:
                with suppress(HardwareError):
                    ask("nvmlShutdown")
                raise
            self._open = True

    def close(self) -> None:
        """Shut NVML down; all handles and event sets die. Needed before a driver reload."""
        with self._lock:
            self._handles.clear()
            if self._open:
                self._open = False
                with suppress(HardwareError):  # nothing to do about it: the library is gone
                    ask("nvmlShutdown")

    def driver_version(self) -> str:
        """As NVML spells it: ``"580.105.08"``."""
        return str(ask("nvmlSystemGetDriverVersion"))

    def cuda_driver_version(self) -> tuple[int, int]:
        """The newest CUDA the driver serves: ``(13, 0)``.

        Not ``_v2``, which answers LIBRARY_NOT_FOUND where there is no libcuda (nvml.h).
        """
        version = int(ask("nvmlSystemGetCudaDriverVersion"))
        return version // 1000, version % 1000 // 10

    # Handles -----------------------------------------------------------------------------

    def count(self) -> int:
        """How many cards NVML lists, lost ones included."""
        return int(ask("nvmlDeviceGetCount"))

    def handle_at(self, index: int) -> Handle:
        """By enumeration index: only for enumerating, because indexes change."""
        return Handle(ask("nvmlDeviceGetHandleByIndex", index))

    def handle(self, gpu: GpuUuid) -> Handle:
        """The kept handle of ``gpu``, or a new one."""
        kept = self._handles.get(gpu)
        return kept if kept is not None else self.keep(gpu, self._find(gpu))

    def keep(self, gpu: GpuUuid, handle: Handle) -> Handle:
        """Remember a handle that was found by enumerating."""
        with self._lock:
            self._handles[gpu] = handle
        return handle

    def forget(self, gpu: GpuUuid) -> None:
        """The next use of ``gpu`` looks its handle up anew."""
        with self._lock:
            self._handles.pop(gpu, None)

    def drop_handles(self) -> None:
        """Forget all handles: a driver reload leaves them stale."""
        with self._lock:
            self._handles.clear()

    @contextmanager
    def on(self, gpu: GpuUuid) -> Iterator[Handle]:
        """A handle to work with: errors inside name the card, and drop the handle where it may
        have gone stale."""
        try:
            yield self.handle(gpu)
        except HardwareError as error:
            if not isinstance(error, DeviceBusyError | NotSupportedError | NoPermissionError):
                self.forget(gpu)
            raise type(error)(f"{error.call} of {gpu}", error.reason, error.code) from error

    def _find(self, gpu: GpuUuid) -> Handle:
        return Handle(ask("nvmlDeviceGetHandleByUUID", gpu))

    # Identity ----------------------------------------------------------------------------

    def uuid(self, handle: Handle) -> GpuUuid:
        """``"GPU-…"``."""
        return GpuUuid(str(ask("nvmlDeviceGetUUID", handle)))

    def pci(self, handle: Handle) -> PciAddress:
        """Extended BDF in lower case."""
        return pci_address(ask("nvmlDeviceGetPciInfo", handle).busId)

    def minor(self, handle: Handle) -> int:
        """The number in ``/dev/nvidia<minor>``; changes over reboots."""
        return int(ask("nvmlDeviceGetMinorNumber", handle))

    def product(self, handle: Handle) -> str:
        """``"NVIDIA H100 80GB HBM3"``."""
        return str(ask("nvmlDeviceGetName", handle))

    def brand(self, handle: Handle) -> str:
        """One of ``BRANDS``; "Unknown" for brands newer than this code."""
        return BRANDS.get(int(ask("nvmlDeviceGetBrand", handle)), "Unknown")

    def architecture(self, handle: Handle) -> str:
        """One of ``ARCHITECTURES``; "Unknown" for newer ones."""
        return ARCHITECTURES.get(int(ask("nvmlDeviceGetArchitecture", handle)), "Unknown")

    def compute_capability(self, handle: Handle) -> tuple[int, int]:
        """CUDA compute capability, ``(9, 0)``."""
        major, minor = ask("nvmlDeviceGetCudaComputeCapability", handle)
        return int(major), int(minor)

    # Properties --------------------------------------------------------------------------

    def memory(self, handle: Handle) -> MemoryReading:
        """Total and reserved bytes. ``reserved`` is 0 where the library has no version 2."""
        try:
            info = ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
        except NotSupportedError:
            info = ask("nvmlDeviceGetMemoryInfo", handle)
            return MemoryReading(Bytes(int(info.total)), Bytes(0))
        return MemoryReading(Bytes(int(info.total)), Bytes(int(info.reserved)))

    def cores(self, handle: Handle) -> int:
        """CUDA cores of the card."""
        return int(ask("nvmlDeviceGetNumGpuCores", handle))

    def mig_mode(self, handle: Handle) -> MigMode:
        """Raises NotSupportedError on a card that is not MIG capable."""
        current, pending = ask("nvmlDeviceGetMigMode", handle)
        return MigMode(current=bool(current), pending=bool(pending))

    def ecc_enabled(self, handle: Handle) -> bool:
        """The current mode, not the pending one."""
        return bool(ask("nvmlDeviceGetEccMode", handle)[0])

    def addressing_mode(self, handle: Handle) -> str | None:
        """ "HMM", "ATS" or "None"; None for a value newer than this code."""
        return addressing_mode_name(int(ask("nvmlDeviceGetAddressingMode", handle)))

    def max_pcie_generation(self, handle: Handle) -> int:
        """What card and slot together can do, not what the link runs at now."""
        return int(ask("nvmlDeviceGetMaxPcieLinkGeneration", handle))

    def max_pcie_width(self, handle: Handle) -> int:
        """Lanes that card and slot together can use."""
        return int(ask("nvmlDeviceGetMaxPcieLinkWidth", handle))

    def fabric(self, handle: Handle) -> Fabric | None:
        """Multi-node NVLink; None unless the card has joined its fabric (COMPLETED, SUCCESS)."""
        info = pynvml.c_nvmlGpuFabricInfoV_t()
        ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
        joined = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        cluster = cluster_uuid(bytes(info.clusterUuid))
        if not joined or info.status != Return.SUCCESS or cluster is None:
            return None
        return Fabric(cluster, int(info.cliqueId))

    # Use -----------------------------------------------------------------------------------

    def compute_mode(self, handle: Handle) -> int:
        """``nvmlComputeMode_t``; 1 (EXCLUSIVE_THREAD) only on drivers of long ago."""
        return int(ask("nvmlDeviceGetComputeMode", handle))

    def set_compute_mode(self, handle: Handle, mode: ComputeMode) -> None:
        """Needs root. EXCLUSIVE_PROCESS is NOT_SUPPORTED in MIG mode."""
        ask("nvmlDeviceSetComputeMode", handle, mode.value)

    def processes(self, handle: Handle, *, mps: bool = False) -> tuple[GpuProcess, ...]:
        """Processes with a compute context, or with ``mps`` the clients of MPS servers;
        ``memory`` None where the kernel does not tell."""
        kind = "MPSCompute" if mps else "Compute"
        found = ask(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle)
        return tuple(
            GpuProcess(
                int(one.pid),
                None if one.usedGpuMemory is None else Bytes(int(one.usedGpuMemory)),
                _instance(one.gpuInstanceId),
            )
            for one in found
        )

    # Health --------------------------------------------------------------------------------

    def recovery_action(self, handle: Handle) -> int:
        """``nvmlDeviceGpuRecoveryAction_t``: 0 none, 1 GPU reset, 2 node reboot, …"""
        name = "nvmlDeviceGetFieldValues(GPU_RECOVERY_ACTION)"
        fields = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        with nvml_call(name):
            (field,) = pynvml.nvmlDeviceGetFieldValues(handle, fields)
        if field.nvmlReturn != Return.SUCCESS:
            raise error_of(name, int(field.nvmlReturn))
        return int(field.value.uiVal)  # an unsigned int (nvml.h)

    def ecc_uncorrected(self, handle: Handle) -> int:
        """Uncorrected errors since the driver was loaded."""
        kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return int(ask("nvmlDeviceGetTotalEccErrors", handle, *kinds))

    def remapped_rows(self, handle: Handle) -> tuple[bool, bool]:
        """(pending, failed). Ampere and newer."""
        _, _, pending, failed = ask("nvmlDeviceGetRemappedRows", handle)
        return bool(pending), bool(failed)

    def retired_pending(self, handle: Handle) -> bool:
        """Whether pages wait for the next reset to be retired. Before Ampere."""
        return bool(ask("nvmlDeviceGetRetiredPagesPendingStatus", handle))

    # Events --------------------------------------------------------------------------------

    def create_event_set(self) -> EventSet:
        """To be given back with ``free_event_set``."""
        return EventSet(ask("nvmlEventSetCreate"))

    def register(self, handle: Handle, events: EventSet) -> None:
        """Register what the card supports of the types worth waking up for.

        Raises NotSupportedError where it supports none.
        """
        types = _EVENT_TYPES & int(ask("nvmlDeviceGetSupportedEventTypes", handle))
        if not types:
            raise NotSupportedError("nvmlDeviceGetSupportedEventTypes", "no usable event type")
        ask("nvmlDeviceRegisterEvents", handle, types, events)

    def wait(self, events: EventSet, timeout_ms: int) -> RawEvent | None:
        """Block for the next event; None after ``timeout_ms``."""
        try:
            data = ask("nvmlEventSetWait", events, timeout_ms)
        except HardwareError as error:
            if error.code == Return.TIMEOUT:
                return None
            raise
        return RawEvent(
            device=data.device,
            is_xid=data.eventType == pynvml.nvmlEventTypeXidCriticalError,
            data=int(data.eventData),
            gpu_instance=_instance(data.gpuInstanceId),
            compute_instance=_instance(data.computeInstanceId),
        )

    def free_event_set(self, events: EventSet) -> None:
        """Raises where the library is gone, and the set with it."""
        ask("nvmlEventSetFree", events)


def _instance(raw: int) -> int | None:
    return None if raw == _NOT_AN_INSTANCE else int(raw)
