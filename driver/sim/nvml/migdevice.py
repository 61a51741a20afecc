"""MIG devices: compute instances as NVML devices."""

from typing import Any

from driver.sim.nvml.codes import INVALID_ARGUMENT, NOT_FOUND, SUCCESS
from driver.sim.nvml.cvalues import number, put, put_handle, target
from driver.sim.nvml.device import need, part_memory_mib
from driver.sim.nvml.handles import MIG_DEVICE, Handle
from driver.sim.nvml.registry import symbol
from driver.sim.nvml.session import Gpu
from driver.sim.partition import compute_multiprocessors


@symbol("nvmlDeviceGetMigDeviceHandleByIndex")
def _by_index(gpu: Gpu, index: Any, out: Any) -> int:
    """A GPU instance without a compute instance has no handle; the index may have holes."""
    need(gpu.profile.mig_capable and gpu.state.mig_current)
    asked = number(index)
    if not 0 <= asked < max(p.instances for p in gpu.profile.gpu_instance_profiles):
        return INVALID_ARGUMENT
    for part in gpu.state.instances:
        for compute in part.compute:
            if compute.index == asked:
                place = Handle(gpu.index, MIG_DEVICE, part.id, compute.id)
                return put_handle(out, gpu.session.handle(place))
    return NOT_FOUND


@symbol("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig=True)
def _parent(gpu: Gpu, out: Any) -> int:
    need(gpu.compute is not None)
    return put_handle(out, gpu.session.handle(Handle(gpu.index)))


@symbol("nvmlDeviceGetGpuInstanceId", mig=True)
def _gpu_instance_id(gpu: Gpu, out: Any) -> int:
    need(gpu.compute is not None)
    return put(out, gpu.part.id if gpu.part else 0)


@symbol("nvmlDeviceGetComputeInstanceId", mig=True)
def _compute_instance_id(gpu: Gpu, out: Any) -> int:
    need(gpu.compute is not None)
    return put(out, gpu.compute.id if gpu.compute else 0)


@symbol("nvmlDeviceGetAttributes_v2", mig=True)
def _attributes(gpu: Gpu, out: Any) -> int:
    """Only MIG devices have them (nvml.h)."""
    outer = gpu.profile.by_id(gpu.part.profile_id) if gpu.part else None
    inner = None
    if outer and gpu.compute:
        wanted = gpu.compute.profile_id
        inner = next((p for p in outer.compute_profiles() if p.profile == wanted), None)
    need(inner is not None)
    if gpu.part is None or outer is None or inner is None:
        return INVALID_ARGUMENT
    struct = target(out)
    struct.multiprocessorCount = compute_multiprocessors(gpu.profile, outer, inner)
    struct.sharedCopyEngineCount = outer.copy_engines
    struct.sharedDecoderCount = outer.decoders
    struct.sharedEncoderCount = outer.encoders
    struct.sharedJpegCount = outer.jpeg
    struct.sharedOfaCount = outer.ofa
    struct.gpuInstanceSliceCount, struct.computeInstanceSliceCount = outer.slices, inner.slices
    struct.memorySizeMB = part_memory_mib(gpu.profile, gpu.part)
    return SUCCESS
