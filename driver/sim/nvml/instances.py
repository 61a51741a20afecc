"""GPU instances and compute instances: create, find, describe, destroy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from driver.sim import files
from driver.sim.boards import ComputeInstanceProfile, GpuInstanceProfile
from driver.sim.nvml.codes import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    Refused,
)
from driver.sim.nvml.cvalues import (
    check_version,
    number,
    put,
    put_handle,
    put_handle_array,
    put_handle_field,
    room,
    target,
)
from driver.sim.nvml.device import need
from driver.sim.nvml.handles import COMPUTE_INSTANCE, GPU_INSTANCE, MIG_DEVICE, Handle
from driver.sim.nvml.mig import by_id
from driver.sim.nvml.registry import symbol
from driver.sim.nvml.session import Gpu
from driver.sim.partition import (
    choose,
    compute_fits,
    compute_multiprocessors,
    compute_starts,
    fits,
    instance_id,
)
from driver.sim.world import ComputeInstance, GpuInstance, GpuState, World, mig_uuid

_COMPUTE_PROFILE_V2 = 0x02000088
_COMPUTE_PROFILES = 9  # NVML_COMPUTE_INSTANCE_PROFILE_COUNT


@symbol("nvmlDeviceGetGpuInstances", privileged=True)
def _gpu_instances(gpu: Gpu, profile_id: Any, array: Any, count: Any) -> int:
    """The caller's array has room for the profile's instance count (nvml.h)."""
    need(gpu.state.mig_current)
    wanted = by_id(gpu, profile_id)
    found = [i.id for i in gpu.state.instances if i.profile_id == wanted.id]
    handles = [gpu.session.handle(Handle(gpu.index, GPU_INSTANCE, i)) for i in found]
    put_handle_array(array, handles)
    return put(count, len(found))


@symbol("nvmlDeviceGetGpuInstanceById", privileged=True)
def _gpu_instance_by_id(gpu: Gpu, gpu_instance: Any, out: Any) -> int:
    need(gpu.state.mig_current)
    found = gpu.state.find(number(gpu_instance))
    if found is None:
        return NOT_FOUND
    return put_handle(out, gpu.session.handle(Handle(gpu.index, GPU_INSTANCE, found.id)))


@symbol("nvmlDeviceCreateGpuInstance", privileged=True)
def _create(gpu: Gpu, profile_id: Any, out: Any) -> int:
    """The driver chooses the placement."""
    return _create_at(gpu, by_id(gpu, profile_id), None, out)


@symbol("nvmlDeviceCreateGpuInstanceWithPlacement", privileged=True)
def _create_with_placement(gpu: Gpu, profile_id: Any, placement: Any, out: Any) -> int:
    wanted, place = by_id(gpu, profile_id), target(placement)
    if place.start not in wanted.starts or place.size != wanted.size:
        return INVALID_ARGUMENT
    return _create_at(gpu, wanted, int(place.start), out)


def _create_at(gpu: Gpu, wanted: GpuInstanceProfile, start: int | None, out: Any) -> int:
    with _changing(gpu) as (_, state):
        need(state.mig_current)
        at = choose(gpu.profile, state.instances, wanted) if start is None else start
        if at is None or not fits(gpu.profile, state.instances, wanted, at):
            raise Refused(INSUFFICIENT_RESOURCES)  # also when the same instance exists already
        new = GpuInstance(instance_id(gpu.profile, at, wanted.size), wanted.id, at, wanted.size)
        state.instances.append(new)
        files.write_instance(gpu.session.store.root, gpu.minor, new.id)
    return put_handle(out, gpu.session.handle(Handle(gpu.index, GPU_INSTANCE, new.id)))


@symbol("nvmlGpuInstanceGetInfo", "gpu instance")
def _gpu_instance_info(gpu: Gpu, out: Any) -> int:
    part, _ = _part(gpu)
    struct = target(out)
    put_handle_field(struct, "device", gpu.session.handle(Handle(gpu.index)))
    struct.id, struct.profileId = part.id, part.profile_id
    struct.placement.start, struct.placement.size = part.start, part.size
    return SUCCESS


@symbol("nvmlGpuInstanceDestroy", "gpu instance", privileged=True)
def _destroy(gpu: Gpu) -> int:
    """IN_USE while it has compute instances or processes."""
    part, _ = _part(gpu)
    with _changing(gpu) as (_, state):
        present = state.find(part.id)
        if present is None:
            raise Refused(INVALID_ARGUMENT)
        if present.compute or any(p.gpu_instance == part.id for p in state.processes):
            raise Refused(IN_USE)
        state.instances.remove(present)
        files.remove_instance(gpu.session.store.root, gpu.minor, part.id)
    return SUCCESS


@symbol("nvmlGpuInstanceGetComputeInstanceProfileInfo", "gpu instance")
def _compute_profile(gpu: Gpu, profile: Any, engines: Any, out: Any) -> int:
    _fill_compute_profile(gpu, profile, engines, target(out))
    return SUCCESS


@symbol("nvmlGpuInstanceGetComputeInstanceProfileInfoV", "gpu instance")
def _compute_profile_versioned(gpu: Gpu, profile: Any, engines: Any, out: Any) -> int:
    struct = target(out)
    check_version(struct, _COMPUTE_PROFILE_V2)
    struct.name = _fill_compute_profile(gpu, profile, engines, struct).name.encode()
    return SUCCESS


def _fill_compute_profile(
    gpu: Gpu, profile: Any, engines: Any, struct: Any
) -> ComputeInstanceProfile:
    if number(engines) != 0 or not 0 <= number(profile) < _COMPUTE_PROFILES:  # 0: shared engines
        raise Refused(INVALID_ARGUMENT)
    _, outer = _part(gpu)
    found = _compute_by_id(outer, profile)
    struct.id, struct.sliceCount, struct.instanceCount = (
        found.profile,
        found.slices,
        found.instances,
    )
    struct.multiprocessorCount = compute_multiprocessors(gpu.profile, outer, found)
    struct.sharedCopyEngineCount = outer.copy_engines
    struct.sharedDecoderCount = outer.decoders
    struct.sharedEncoderCount = outer.encoders
    struct.sharedJpegCount = outer.jpeg
    struct.sharedOfaCount = outer.ofa
    return found


@symbol("nvmlGpuInstanceGetComputeInstancePossiblePlacements", "gpu instance", privileged=True)
def _compute_placements(gpu: Gpu, profile_id: Any, array: Any, count: Any) -> int:
    _, outer = _part(gpu)
    inner = _compute_by_id(outer, profile_id)
    starts = compute_starts(outer, inner)
    if array is None:  # asks for the count only
        return put(count, len(starts))
    rows = room(count, array, len(starts))
    for position, start in enumerate(starts):
        rows[position].start, rows[position].size = start, inner.slices
    return SUCCESS


@symbol("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", "gpu instance", privileged=True)
def _compute_capacity(gpu: Gpu, profile_id: Any, out: Any) -> int:
    part, outer = _part(gpu)
    inner = _compute_by_id(outer, profile_id)
    return put(out, len(_free_compute(part, outer, inner)))


@symbol("nvmlGpuInstanceCreateComputeInstance", "gpu instance", privileged=True)
def _create_compute(gpu: Gpu, profile_id: Any, out: Any) -> int:
    return _create_compute_at(gpu, profile_id, None, out)


@symbol("nvmlGpuInstanceCreateComputeInstanceWithPlacement", "gpu instance", privileged=True)
def _create_compute_with_placement(gpu: Gpu, profile_id: Any, placement: Any, out: Any) -> int:
    return _create_compute_at(gpu, profile_id, int(target(placement).start), out)


def _create_compute_at(gpu: Gpu, profile_id: Any, start: int | None, out: Any) -> int:
    part, outer = _part(gpu)
    inner = _compute_by_id(outer, profile_id)
    with _changing(gpu) as (world, state):
        present = state.find(part.id)
        if present is None:
            raise Refused(INVALID_ARGUMENT)
        free = _free_compute(present, outer, inner)
        if not free or (start is not None and start not in free):
            raise Refused(INSUFFICIENT_RESOURCES)
        at = free[0] if start is None else start
        compute_id = _lowest({c.id for c in present.compute})
        index = _lowest({c.index for i in state.instances for c in i.compute})
        uuid = mig_uuid(world, gpu.card.uuid, part.id, compute_id)
        present.compute.append(
            ComputeInstance(compute_id, inner.profile, at, inner.slices, index, uuid)
        )
        files.write_instance(gpu.session.store.root, gpu.minor, part.id, compute_id)
    place = Handle(gpu.index, COMPUTE_INSTANCE, part.id, compute_id)
    return put_handle(out, gpu.session.handle(place))


@symbol("nvmlGpuInstanceGetComputeInstances", "gpu instance", privileged=True)
def _compute_instances(gpu: Gpu, profile_id: Any, array: Any, count: Any) -> int:
    part, outer = _part(gpu)
    wanted = _compute_by_id(outer, profile_id)
    found = [c.id for c in part.compute if c.profile_id == wanted.profile]
    places = [Handle(gpu.index, COMPUTE_INSTANCE, part.id, c) for c in found]
    put_handle_array(array, [gpu.session.handle(place) for place in places])
    return put(count, len(found))


@symbol("nvmlGpuInstanceGetComputeInstanceById", "gpu instance", privileged=True)
def _compute_by_number(gpu: Gpu, compute_instance: Any, out: Any) -> int:
    part, _ = _part(gpu)
    found = part.find(number(compute_instance))
    if found is None:
        return NOT_FOUND
    place = Handle(gpu.index, COMPUTE_INSTANCE, part.id, found.id)
    return put_handle(out, gpu.session.handle(place))


@symbol("nvmlComputeInstanceGetInfo_v2", "compute instance")
def _compute_info(gpu: Gpu, out: Any) -> int:
    """``device`` is the MIG device, as on hardware; the header says the parent."""
    part, compute = _compute(gpu)
    struct, session = target(out), gpu.session
    device = session.handle(Handle(gpu.index, MIG_DEVICE, part.id, compute.id))
    put_handle_field(struct, "device", device)
    outer = session.handle(Handle(gpu.index, GPU_INSTANCE, part.id))
    put_handle_field(struct, "gpuInstance", outer)
    struct.id, struct.profileId = compute.id, compute.profile_id
    struct.placement.start, struct.placement.size = compute.start, compute.size
    return SUCCESS


@symbol("nvmlComputeInstanceDestroy", "compute instance", privileged=True)
def _destroy_compute(gpu: Gpu) -> int:
    """IN_USE while processes run on it."""
    part, compute = _compute(gpu)
    place = part.id, compute.id
    with _changing(gpu) as (_, state):
        outer = state.find(part.id)
        present = outer.find(compute.id) if outer else None
        if outer is None or present is None:
            raise Refused(INVALID_ARGUMENT)
        if any((p.gpu_instance, p.compute_instance) == place for p in state.processes):
            raise Refused(IN_USE)
        outer.compute.remove(present)
        files.remove_instance(gpu.session.store.root, gpu.minor, *place)
    return SUCCESS


@contextmanager
def _changing(gpu: Gpu) -> Iterator[tuple[World, GpuState]]:
    """The card's state, to change. Checks are made on this copy: others may have been faster."""
    with gpu.session.store.update() as world:
        yield world, world.change(gpu.index)


def _part(gpu: Gpu) -> tuple[GpuInstance, GpuInstanceProfile]:
    profile = gpu.profile.by_id(gpu.part.profile_id) if gpu.part else None
    if gpu.part is None or profile is None:
        raise Refused(INVALID_ARGUMENT)
    return gpu.part, profile


def _compute(gpu: Gpu) -> tuple[GpuInstance, ComputeInstance]:
    if gpu.part is None or gpu.compute is None:
        raise Refused(INVALID_ARGUMENT)
    return gpu.part, gpu.compute


def _compute_by_id(outer: GpuInstanceProfile, profile_id: Any) -> ComputeInstanceProfile:
    asked = number(profile_id)
    for profile in outer.compute_profiles():
        if profile.profile == asked:  # of compute instances the id is the enum
            return profile
    raise Refused(NOT_SUPPORTED)


def _free_compute(
    part: GpuInstance, outer: GpuInstanceProfile, inner: ComputeInstanceProfile
) -> list[int]:
    starts = compute_starts(outer, inner)
    return [start for start in starts if compute_fits(part.compute, start, inner.slices)]


def _lowest(taken: set[int]) -> int:
    """The lowest number that is free: ids are reused, and indexes keep holes."""
    return next(n for n in range(len(taken) + 1) if n not in taken)
