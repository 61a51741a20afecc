"""The MIG profiles of a card."""

import ctypes
import math
from decimal import ROUND_HALF_UP, Decimal

from driver.errors import HardwareError, NotSupportedError
from driver.hw.codes import Return
from driver.hw.nvml import Handle, ask, handle_array
from driver.hw.readouts import InstanceProfile
from driver.model.gpu import Engines, MigProfile
from driver.model.mig import Placement
from driver.model.units import Bytes, from_mib

_WITH_MEDIA = {7, 8}  # NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1 and 2_SLICE_REV1
_BOUND = 64  # for broken answers only: API 13 knows 18 profiles


def instance_profiles(handle: Handle) -> tuple[InstanceProfile, ...]:
    """The GPU instance profiles of the card; empty where it has none.

    The profile enum is walked until INVALID_ARGUMENT, skipping NOT_SUPPORTED (nvml.h).
    """
    found: list[InstanceProfile] = []
    for profile in range(_BOUND):
        try:
            found.append(_read(handle, profile))
        except NotSupportedError:
            continue
        except HardwareError as error:
            if error.code == Return.INVALID_ARGUMENT:
                break
            raise
    return tuple(found)


def mig_profiles(handle: Handle, total: Bytes) -> tuple[MigProfile, ...]:
    """What the card can be cut into, with the placements of each; ``total`` is its memory.

    Empty where it cannot be cut, and on Ampere while MIG mode is off: placements are not told
    then. Raises HardwareError where the card is capable and does not answer.
    """
    found = []
    for profile in instance_profiles(handle):
        try:
            places = _placements(handle, profile.id)
        except NotSupportedError:
            continue
        if places:
            found.append(_described(profile, places, total))
    return tuple(found)


def profile_gb(memory_mib: int, total_mib: int) -> int:
    """The GB figure in a profile's name: NVIDIA's formula, for libraries that do not tell names.

    Rounds half up; Python's ``round`` rounds half to even and gives wrong names.
    """
    eighths = math.ceil(Decimal(memory_mib) / Decimal(total_mib) * 8)
    total_gib = math.ceil(Decimal(total_mib) / 1024)
    return int((Decimal(eighths) / 8 * total_gib).quantize(Decimal(1), ROUND_HALF_UP))


def _described(
    profile: InstanceProfile, places: tuple[Placement, ...], total: Bytes
) -> MigProfile:
    return MigProfile(
        name=profile.name.removeprefix("MIG ").strip() or _name(profile, total),
        enum=profile.enum,
        id=profile.id,
        slices=profile.compute_slices,
        memory=from_mib(profile.memory_mib),
        multiprocessors=profile.multiprocessors,
        engines=Engines(
            profile.copy, profile.decoders, profile.encoders, profile.jpeg, profile.ofa
        ),
        size=places[0].size,
        starts=tuple(place.start for place in places),
        instances=profile.instances,
    )


def _name(profile: InstanceProfile, total: Bytes) -> str:
    size = profile_gb(profile.memory_mib, max(total >> 20, 1))
    variant = "+me" if profile.enum in _WITH_MEDIA else ""
    return f"{profile.compute_slices}g.{size}gb{variant}"


def _placements(handle: Handle, profile_id: int) -> tuple[Placement, ...]:
    """By start. All placements of a profile have one size."""
    call, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint()
    ask(call, handle, profile_id, None, ctypes.byref(count))
    if not count.value:
        return ()
    rows = handle_array("c_nvmlGpuInstancePlacement_t", count.value)
    ask(call, handle, profile_id, rows, ctypes.byref(count))
    return tuple(sorted(Placement(int(row.start), int(row.size)) for row in rows[: count.value]))


def _read(handle: Handle, profile: int) -> InstanceProfile:
    call = "nvmlDeviceGetGpuInstanceProfileInfo"
    try:
        info = ask(call, handle, profile, 2)
    except NotSupportedError as error:
        if error.code == Return.NOT_SUPPORTED:
            raise
        info = ask(call, handle, profile, 1)  # a library without version 2
    return InstanceProfile(
        enum=profile,
        id=int(info.id),
        name=str(getattr(info, "name", "")),
        compute_slices=int(info.sliceCount),
        instances=int(info.instanceCount),
        memory_mib=int(info.memorySizeMB),
        multiprocessors=int(info.multiprocessorCount),
        copy=int(info.copyEngineCount),
        decoders=int(info.decoderCount),
        encoders=int(info.encoderCount),
        jpeg=int(info.jpegCount),
        ofa=int(info.ofaCount),
    )
