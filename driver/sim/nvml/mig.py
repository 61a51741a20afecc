"""MIG mode, GPU instance profiles, placements and the instances there are."""

from typing import Any

from driver.sim.nvml.codes import (
    IN_USE,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    SUCCESS,
    Refused,
)
from driver.sim.nvml.cvalues import check_version, number, put, room, target
from driver.sim.nvml.device import need
from driver.sim.nvml.registry import AFTER_535, symbol
from driver.sim.nvml.session import Gpu
from driver.sim.partition import remaining
from driver.sim.profiles import GpuInstanceProfile
from driver.sim.world import GpuState

_PROFILE_V2 = 0x02000098
# NVML_GPU_INSTANCE_PROFILE_COUNT of the headers the branches were built with
_ENUM_COUNTS = ((590, 18), (575, 17), (525, 10), (470, 8))


def enum_count(driver_major: int) -> int:
    """How many GPU instance profile enums a driver branch knows."""
    return next((n for branch, n in _ENUM_COUNTS if driver_major >= branch), 6)


@symbol("nvmlDeviceGetMigMode")
def _mode(gpu: Gpu, current: Any, pending: Any) -> int:
    need(gpu.profile.mig_capable)
    return put(current, int(gpu.state.mig_current)) or put(pending, int(gpu.state.mig_pending))


@symbol("nvmlDeviceSetMigMode", privileged=True)
def _set_mode(gpu: Gpu, mode: Any, activation: Any) -> int:
    """Succeeds even when the mode stays pending; the activation status says why."""
    need(gpu.profile.mig_capable)
    wanted = number(mode)
    if wanted not in {0, 1}:
        return INVALID_ARGUMENT
    with gpu.session.store.update() as world:
        state = world.change(gpu.index)
        status = _activate(state, bool(wanted), needs_reset=gpu.profile.mig_needs_reset)
    return put(activation, status)


def _activate(state: GpuState, wanted: bool, *, needs_reset: bool) -> int:
    """Change the mode at once where that is possible; what stands in the way otherwise."""
    if needs_reset:
        state.mig_pending = wanted
    if wanted == state.mig_current:
        return SUCCESS
    if state.processes or state.instances:
        return IN_USE
    if needs_reset and state.mig_reset != "auto":
        return NOT_SUPPORTED if state.mig_reset == "vm" else RESET_REQUIRED
    state.mig_current = state.mig_pending = wanted
    return SUCCESS


@symbol("nvmlDeviceGetMaxMigDeviceCount")
def _max_devices(gpu: Gpu, out: Any) -> int:
    need(gpu.profile.mig_capable)
    most = max(p.instances for p in gpu.profile.gpu_instance_profiles)
    return put(out, most if gpu.state.mig_current else 0)


def by_enum(gpu: Gpu, profile: Any) -> GpuInstanceProfile:
    asked = number(profile)
    if not 0 <= asked < enum_count(gpu.world.driver_major):
        raise Refused(INVALID_ARGUMENT)
    found = gpu.profile.by_enum(asked)
    if found is None:
        raise Refused(NOT_SUPPORTED)
    return found


def by_id(gpu: Gpu, profile_id: Any) -> GpuInstanceProfile:
    found = gpu.profile.by_id(number(profile_id))
    if found is None:
        raise Refused(NOT_SUPPORTED)
    return found


@symbol("nvmlDeviceGetGpuInstanceProfileInfo")
def _profile_info(gpu: Gpu, profile: Any, out: Any) -> int:
    _fill_profile(target(out), by_enum(gpu, profile))
    return SUCCESS


@symbol("nvmlDeviceGetGpuInstanceProfileInfoV")
def _profile_info_versioned(gpu: Gpu, profile: Any, out: Any) -> int:
    struct = target(out)
    check_version(struct, _PROFILE_V2)
    found = by_enum(gpu, profile)
    _fill_profile(struct, found)
    struct.name = found.name.encode()
    return SUCCESS


@symbol("nvmlDeviceGetGpuInstanceProfileInfoByIdV", since=AFTER_535)
def _profile_info_by_id(gpu: Gpu, profile_id: Any, out: Any) -> int:
    struct = target(out)
    check_version(struct, _PROFILE_V2)
    need(gpu.profile.mig_capable)
    found = by_id(gpu, profile_id)
    _fill_profile(struct, found)
    struct.name = found.name.encode()
    return SUCCESS


def _fill_profile(struct: Any, profile: GpuInstanceProfile) -> None:
    struct.id = profile.id
    struct.isP2pSupported = 0
    struct.sliceCount = profile.slices
    struct.instanceCount = profile.instances
    struct.multiprocessorCount = profile.multiprocessors
    struct.copyEngineCount = profile.copy_engines
    struct.decoderCount = profile.decoders
    struct.encoderCount = profile.encoders
    struct.jpegCount = profile.jpeg
    struct.ofaCount = profile.ofa
    struct.memorySizeMB = profile.memory_mib


@symbol("nvmlDeviceGetGpuInstancePossiblePlacements_v2", privileged=True)
def _placements(gpu: Gpu, profile_id: Any, array: Any, count: Any) -> int:
    """Readable with MIG mode off on Hopper and newer, not on Ampere."""
    need(gpu.profile.mig_capable)
    need(gpu.state.mig_current or not gpu.profile.mig_needs_reset)
    found = by_id(gpu, profile_id)
    if array is None:  # asks for the count only
        return put(count, len(found.starts))
    rows = room(count, array, len(found.starts))
    for position, start in enumerate(found.starts):
        rows[position].start, rows[position].size = start, found.size
    return SUCCESS


@symbol("nvmlDeviceGetGpuInstanceRemainingCapacity", privileged=True)
def _capacity(gpu: Gpu, profile_id: Any, out: Any) -> int:
    need(gpu.state.mig_current)
    return put(out, remaining(gpu.profile, gpu.state.instances, by_id(gpu, profile_id)))
