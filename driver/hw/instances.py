"""GPU and compute instances as NVML lists them. Handles are good until the instance goes."""

import ctypes
from dataclasses import dataclass
from typing import Any

from driver.errors import HardwareError, NotSupportedError
from driver.hw.codes import Return
from driver.hw.nvml import Handle, ask, handle_array
from driver.hw.profiles import instance_profiles
from driver.model.mig import Placement

_COMPUTE_PROFILES = 16  # more than NVML_COMPUTE_INSTANCE_PROFILE_COUNT of any header
_SHARED_ENGINES = 0  # NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


@dataclass(frozen=True, slots=True)
class Found:
    """A GPU instance."""

    handle: Handle
    id: int
    profile_id: int
    placement: Placement
    slices: int  # GPU slices


@dataclass(frozen=True, slots=True)
class FoundCompute:
    """A compute instance."""

    handle: Handle
    id: int
    slices: int


def gpu_instances(device: Handle) -> tuple[Found, ...]:
    """Those of a card in MIG mode: every profile is asked for, because one without a compute
    instance is no MIG device and shows up nowhere else."""
    found = []
    for profile in instance_profiles(device):
        rows = handle_array("c_nvmlGpuInstance_t", max(profile.instances, 1))
        count = ctypes.c_uint(len(rows))
        ask("nvmlDeviceGetGpuInstances", device, profile.id, rows, ctypes.byref(count))
        for i in range(count.value):
            info = ask("nvmlGpuInstanceGetInfo", rows[i])
            place = Placement(int(info.placement.start), int(info.placement.size))
            handle = Handle(rows[i])
            found.append(Found(handle, int(info.id), profile.id, place, profile.compute_slices))
    return tuple(found)


def compute_instances(outer: Found) -> tuple[FoundCompute, ...]:
    """Those of a GPU instance, by id."""
    found = []
    for info in _compute_profiles(outer):
        rows = handle_array("c_nvmlComputeInstance_t", max(int(info.instanceCount), 1))
        count = ctypes.c_uint(len(rows))
        call = "nvmlGpuInstanceGetComputeInstances"
        ask(call, outer.handle, int(info.id), rows, ctypes.byref(count))
        for i in range(count.value):
            one = ask("nvmlComputeInstanceGetInfo", rows[i])
            found.append(FoundCompute(Handle(rows[i]), int(one.id), int(info.sliceCount)))
    return tuple(sorted(found, key=lambda each: each.id))


def create_compute(outer: Found) -> None:
    """One compute instance over all of a GPU instance.

    Raises HardwareError where none of its profiles is so large.
    """
    for info in _compute_profiles(outer):
        if int(info.sliceCount) == outer.slices:
            ask("nvmlGpuInstanceCreateComputeInstance", outer.handle, int(info.id))
            return
    raise HardwareError(
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        f"GPU instance {outer.id} has no compute instance profile of {outer.slices} slices",
    )


def mig_handle(device: Handle, gpu_instance: int, compute_instance: int) -> Handle | None:
    """The MIG device of two instances. Its index has holes, so all are looked at; the handle in
    ``nvmlComputeInstanceInfo_t`` is the parent's by the header and not used."""
    for index in range(int(ask("nvmlDeviceGetMaxMigDeviceCount", device))):
        try:
            found = ask("nvmlDeviceGetMigDeviceHandleByIndex", device, index)
            outer = int(ask("nvmlDeviceGetGpuInstanceId", found))
            inner = int(ask("nvmlDeviceGetComputeInstanceId", found))
        except HardwareError as error:
            if error.code != Return.NOT_FOUND:
                raise
            continue
        if (outer, inner) == (gpu_instance, compute_instance):
            return Handle(found)
    return None


def _compute_profiles(outer: Found) -> list[Any]:
    """Walked like the GPU instance profiles; the one with media extensions of its own has the
    slices of another and comes after it."""
    found = []
    for profile in range(_COMPUTE_PROFILES):
        call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        try:
            found.append(ask(call, outer.handle, profile, _SHARED_ENGINES, 1))
        except NotSupportedError:
            continue
        except HardwareError as error:
            if error.code == Return.INVALID_ARGUMENT:
                break
            raise
    return found
