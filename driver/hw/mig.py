"""Partitions on the cards: what there is, make one, destroy one, and the mode they need.

Everything is addressed by position. Ids of instances are reused, so they are looked up each time.
"""

import ctypes
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from driver.errors import DeviceBusyError, HardwareError, NotSupportedError
from driver.hw.capabilities import capability_nodes
from driver.hw.codes import Return, describe
from driver.hw.instances import (
    Found,
    compute_instances,
    create_compute,
    gpu_instances,
    mig_handle,
)
from driver.hw.nvml import Handle, Nvml, ask, struct
from driver.model.ids import GpuUuid
from driver.model.mig import MigDevice, MigInstance, Placement
from driver.model.steps import CreateMigDevice, EnsureMigMode

# The last client of an instance takes a moment to go, and monitors look at it in passing
# (DCGM#95): seconds between attempts. Longer than this it is somebody's, who must be named.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0)


class MigCards:
    """Any thread may call; who calls keeps changes of one card in order. All calls block."""

    def __init__(
        self, nvml: Nvml, root: Path, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._nvml = nvml
        self._root = root
        self._pause = pause

    # Reading -----------------------------------------------------------------------------

    def instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        """Every GPU instance of the card, whoever made it, also half made ones; the ground truth.

        None while MIG mode is off, or where there is no such thing.
        """
        with self._nvml.on(gpu) as handle:
            return tuple(sorted(map(_instance, self._found(handle)), key=lambda i: i.placement))

    def device(self, gpu: GpuUuid, placement: Placement) -> MigDevice | None:
        """The partition at a place as a container needs it; None when there is none."""
        with self._nvml.on(gpu) as handle:
            found = self._at(handle, placement)
            compute = compute_instances(found) if found else ()
            if found is None or not compute:
                return None
            device = mig_handle(handle, found.id, compute[0].id)
            if device is None:
                return None
            return MigDevice(
                uuid=str(self._nvml.uuid(device)),
                memory=self._nvml.memory(device).total,
                nodes=capability_nodes(
                    self._root, self._nvml.minor(handle), found.id, compute[0].id
                ),
            )

    def instance_id(self, gpu: GpuUuid, placement: Placement) -> int | None:
        """The present id of the instance at a place, to tell its processes."""
        with self._nvml.on(gpu) as handle:
            found = self._at(handle, placement)
            return found.id if found else None

    def _found(self, handle: Handle) -> tuple[Found, ...]:
        try:
            if not self._nvml.mig_mode(handle).current:
                return ()
        except NotSupportedError:
            return ()
        return gpu_instances(handle)

    def _at(self, handle: Handle, placement: Placement) -> Found | None:
        return next((each for each in self._found(handle) if each.placement == placement), None)

    def _ours(self, handle: Handle, step: CreateMigDevice) -> Found | None:
        found = self._at(handle, step.placement)
        return found if found and found.profile_id == step.profile_id else None

    # Mode --------------------------------------------------------------------------------

    def in_mode(self, step: EnsureMigMode) -> bool:
        with self._nvml.on(step.gpu) as handle:
            return self._nvml.mig_mode(handle).current == step.on

    def ensure_mode(self, step: EnsureMigMode) -> None:
        """Turn MIG mode on or off where that is allowed and nobody uses the card.

        ``nvmlDeviceSetMigMode`` reports success although the mode is only pending: the activation
        status counts, and what is read afterwards.
        """
        if self.in_mode(step):
            return
        wanted = "on" if step.on else "off"
        if not step.toggle:
            raise HardwareError(
                f"MIG mode of {step.gpu}",
                f"is {'off' if step.on else 'on'}, {wanted} was wanted, and changing it is not "
                f"allowed (migModeToggle in the node policy; never where it needs a reset). Run "
                f"`nvidia-smi -i {step.gpu} -mig {int(step.on)}` while nothing uses the card, and "
                "reset it if that says so",
            )
        self._patiently(lambda: self._set_mode(step))
        self._nvml.forget(step.gpu)  # the card may have been reset: minor and handle change
        if not self.in_mode(step):
            raise HardwareError(
                f"nvmlDeviceSetMigMode of {step.gpu}",
                f"reported success, but MIG mode is not {wanted}; another program sets it, or "
                "the card must be reset first",
            )

    def _set_mode(self, step: EnsureMigMode) -> None:
        with self._nvml.on(step.gpu) as handle:
            status = int(ask("nvmlDeviceSetMigMode", handle, int(step.on)))
            if status == Return.IN_USE:
                raise DeviceBusyError("nvmlDeviceSetMigMode", self._who(handle), status)
            if status != Return.SUCCESS:
                raise HardwareError(
                    "nvmlDeviceSetMigMode", f"not active yet: {describe(status)}", status
                )

    # Instances ---------------------------------------------------------------------------

    def present(self, step: CreateMigDevice) -> bool:
        """Whether the partition is there as a whole."""
        with self._nvml.on(step.gpu) as handle:
            found = self._ours(handle, step)
            return found is not None and _spans(found)

    def create(self, step: CreateMigDevice) -> None:
        """Make it, or what is missing of it: a process may have died between the two halves."""
        with self._nvml.on(step.gpu) as handle:
            found = self._ours(handle, step) or self._create(handle, step)
            if _spans(found):
                return
            if others := compute_instances(found):
                raise HardwareError(
                    "nvmlGpuInstanceCreateComputeInstance",
                    f"{_what(step)} already has compute instance {others[0].id}, which is smaller "
                    "than it and was not made by this driver; destroy it (nvidia-smi mig -dci)",
                )
            create_compute(found)

    def _create(self, handle: Handle, step: CreateMigDevice) -> Found:
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        place = struct("c_nvmlGpuInstancePlacement_t", step.placement.start, step.placement.size)
        try:
            ask(call, handle, step.profile_id, ctypes.byref(place))
        except HardwareError as error:
            raise type(error)(call, self._why(handle, step, error), error.code) from error
        found = self._ours(handle, step)
        if found is None:
            raise HardwareError(call, f"reported success, but there is no {_what(step)}")
        return found

    def _why(self, handle: Handle, step: CreateMigDevice, error: HardwareError) -> str:
        if error.code != Return.INSUFFICIENT_RESOURCES:
            return f"{_what(step)}: {error.reason}"
        there = [each for each in self._found(handle) if each.placement.overlaps(step.placement)]
        if there:
            names = ", ".join(f"GPU instance {each.id} at {each.placement}" for each in there)
            return f"{_what(step)}: the place is taken by {names}"
        return (
            f"{_what(step)}: the place is free, but what the profile needs only once on a card "
            "(media engines, or its number of instances) is used by another instance"
        )

    def destroy(self, step: CreateMigDevice) -> None:
        """Take away what lies there with this profile: compute instances first, then itself.

        Both may answer IN_USE for a while, also for holders that nobody sees, and one may go
        while the other stays.
        """
        with self._nvml.on(step.gpu) as handle:
            found = self._ours(handle, step)
            if found is None:
                return
            try:
                for compute in compute_instances(found):
                    self._patiently(partial(ask, "nvmlComputeInstanceDestroy", compute.handle))
                self._patiently(partial(ask, "nvmlGpuInstanceDestroy", found.handle))
            except DeviceBusyError as error:
                who = self._who(handle, found.id)
                raise DeviceBusyError(error.call, f"{_what(step)}: {who}", error.code) from error

    # -------------------------------------------------------------------------------------

    def _who(self, handle: Handle, gpu_instance: int | None = None) -> str:
        processes = [
            str(each.pid)
            for each in self._nvml.processes(handle)
            if gpu_instance is None or each.gpu_instance == gpu_instance
        ]
        if processes:
            return f"in use by process {', '.join(processes)}: end it"
        return (
            "in use, though no compute process is listed: monitoring (DCGM), nvidia-persistenced "
            "or a display server may hold it"
        )

    def _patiently(self, act: Callable[[], Any]) -> None:
        for pause in _PAUSES:
            try:
                act()
            except DeviceBusyError:
                self._pause(pause)
            else:
                return
        act()


def _instance(found: Found) -> MigInstance:
    compute = tuple(each.id for each in compute_instances(found))
    return MigInstance(found.profile_id, found.placement, found.id, compute)


def _spans(found: Found) -> bool:
    return any(each.slices == found.slices for each in compute_instances(found))


def _what(step: CreateMigDevice) -> str:
    return f"partition {step.profile} at {step.placement}"
