"""Library and driver: init, versions, and finding cards."""

from typing import Any

from driver.sim.nvml.codes import INVALID_ARGUMENT, NOT_FOUND, TEXTS, Refused
from driver.sim.nvml.cvalues import number, put, put_text, target, text
from driver.sim.nvml.handles import MIG_DEVICE, Handle
from driver.sim.nvml.registry import AFTER_535, symbol
from driver.sim.nvml.session import Session
from driver.sim.world import World

# CUDA version that each driver branch supports, newest first (NVIDIA's CUDA release notes)
_CUDA = ((610, 13030), (590, 13010), (580, 13000), (575, 12090), (570, 12080), (560, 12060))
_CUDA_OLDER = ((550, 12040), (545, 12030), (535, 12020), (525, 12000))


def cuda_version(driver_major: int) -> int:
    """CUDA version as NVML encodes it (13.0 is 13000) for a driver branch."""
    return next((c for branch, c in _CUDA + _CUDA_OLDER if driver_major >= branch), 11080)


@symbol("nvmlInitWithFlags", "free")
def _init(session: Session, world: World, _flags: Any) -> int:
    return session.init(world)


@symbol("nvmlInit_v2", "free")
def _init_v2(session: Session, world: World) -> int:
    return session.init(world)


@symbol("nvmlShutdown", "free")
def _shutdown(session: Session, _world: World) -> int:
    return session.shutdown()


@symbol("nvmlErrorString", "free")
def _error_string(_session: Session, _world: World, code: Any) -> bytes:
    return TEXTS.get(number(code), b"Unknown Error")


@symbol("nvmlSystemGetDriverVersion", "system")
def _driver_version(_session: Session, world: World, buffer: Any, size: Any) -> int:
    return put_text(buffer, size, world.driver_version)


@symbol("nvmlSystemGetNVMLVersion", "system")
def _nvml_version(_session: Session, world: World, buffer: Any, size: Any) -> int:
    major = cuda_version(world.driver_major) // 1000
    return put_text(buffer, size, f"{major}.{world.driver_version}")


@symbol("nvmlSystemGetCudaDriverVersion", "system")
def _cuda(_session: Session, world: World, out: Any) -> int:
    return put(out, cuda_version(world.driver_major))


@symbol("nvmlSystemGetCudaDriverVersion_v2", "system")
def _cuda_v2(_session: Session, world: World, out: Any) -> int:
    return put(out, cuda_version(world.driver_major))


@symbol("nvmlDeviceGetCount_v2", "system")
def _count(_session: Session, world: World, out: Any) -> int:
    return put(out, world.count)


@symbol("nvmlDeviceGetHandleByIndex_v2", "lookup")
def _by_index(_session: Session, world: World, index: Any, _out: Any) -> Handle:
    found = number(index)
    if not 0 <= found < world.count:
        raise Refused(INVALID_ARGUMENT)
    return Handle(found)


@symbol("nvmlDeviceGetHandleByUUID", "lookup")
def _by_uuid(session: Session, world: World, uuid: Any, _out: Any) -> Handle:
    asked = text(uuid)
    if asked.startswith("MIG-"):
        return _mig_device(session, world, asked)
    return _found(session.by_uuid, asked)


@symbol("nvmlDeviceGetHandleByUUIDV", "lookup", since=AFTER_535)
def _by_uuid_struct(session: Session, world: World, uuid: Any, out: Any) -> Handle:
    struct = target(uuid)
    if struct.type == 1:  # NVML_UUID_TYPE_ASCII
        return _by_uuid(session, world, bytes(struct.value.str), out)
    if struct.type != 2:  # NVML_UUID_TYPE_BINARY
        raise Refused(INVALID_ARGUMENT)
    digits = bytes(struct.value.bytes).hex()
    return _found({u[4:].replace("-", ""): i for u, i in session.by_uuid.items()}, digits)


@symbol("nvmlDeviceGetHandleByPciBusId_v2", "lookup")
def _by_pci(session: Session, _world: World, bus_id: Any, _out: Any) -> Handle:
    """Takes ``0000:1b:00.0``, NVML's eight-digit domain, or no domain at all; any case."""
    parts = text(bus_id).lower().split(":")
    if len(parts) == 2:  # bus:device.function
        parts = ["0", *parts]
    try:
        domain = int(parts[0], 16)
    except ValueError:
        raise Refused(INVALID_ARGUMENT) from None
    return _found(session.by_pci, ":".join((f"{domain:04x}", *parts[1:])))


def _found(table: dict[str, int], key: str) -> Handle:
    index = table.get(key)
    if index is None:
        raise Refused(NOT_FOUND)
    return Handle(index)


def _mig_device(session: Session, world: World, uuid: str) -> Handle:
    """Takes both forms: ``MIG-<uuid>`` and, before R470, ``MIG-GPU-<uuid>/<gi>/<ci>``."""
    for index, state in world.gpus.items():
        for part in state.instances:
            for compute in part.compute:
                old = f"MIG-{session.cards[index].uuid}/{part.id}/{compute.id}"
                if uuid in {compute.uuid, old}:
                    return Handle(index, MIG_DEVICE, part.id, compute.id)
    raise Refused(NOT_FOUND)
