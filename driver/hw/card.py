"""Cards as the driver's core needs them: read, do, undo, look again. All calls block."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, assert_never

from driver.errors import HardwareError
from driver.hw.cgroups import PodCgroups
from driver.hw.ctk import Toolkit
from driver.hw.devnodes import control_nodes, gpu_nodes
from driver.hw.discover import discover, unlisted
from driver.hw.libraries import DriverFileCache, DriverFiles
from driver.hw.mig import MigCards
from driver.hw.mps import MpsCards
from driver.hw.nvml import Nvml
from driver.hw.podlimits import PodLimits
from driver.hw.sysfs import Sysfs
from driver.hw.timeslice import TimeSlices
from driver.hw.usage import CardUsage
from driver.model.gpu import ComputeMode, DeviceNode, GpuProcess, Inventory
from driver.model.ids import GpuUuid, PciAddress
from driver.model.mig import MigDevice, MigInstance, Placement
from driver.model.steps import (
    CreateMigDevice,
    EnsureMigMode,
    LimitPod,
    MpsNamespace,
    ServeMps,
    SetComputeMode,
    SetTimeSlice,
    Step,
    TimeSliceInterval,
)
from driver.model.usage import ProcessUse
from driver.model.view import MpsFolders


class Cards:
    """The node's cards. Any thread may call; who calls keeps changes of one card in order.

    ``root`` is where /dev, /sys and the driver's files are seen from here; ``host_root`` is where
    the host has them (the same unless the driver runs in a container); ``cgroups`` where its
    cgroups are seen; ``toolkit`` is nvidia-ctk where it lies apart from the driver. Every method
    raises HardwareError or one of its kinds.
    """

    def __init__(
        self,
        nvml: Nvml,
        root: Path,
        host_root: Path | None = None,
        mps: MpsCards | None = None,
        cgroups: Path | None = None,
        toolkit: Path | None = None,
    ) -> None:
        self._nvml = nvml
        self._root = root
        self._host_root = host_root or root
        self._files = DriverFileCache(root, host_root)
        self._toolkit = Toolkit(root, host_root, toolkit)
        self._mig = MigCards(nvml, root)
        self._time = TimeSlices(root)
        self._usage = CardUsage(nvml, root)
        self.mps = mps or MpsCards(None)
        self._pods = PodLimits(nvml, PodCgroups(cgroups or root / "sys/fs/cgroup"))

    # Reading -----------------------------------------------------------------------------

    def discover(self) -> Inventory:
        """All cards, read anew."""
        return discover(self._nvml, Sysfs(self._root))

    def unlisted(self, inventory: Inventory) -> tuple[PciAddress, ...]:
        """Cards on the PCI bus that NVML did not count: to be reported, not passed over."""
        return unlisted(inventory, Sysfs(self._root))

    def nodes(self, gpu: GpuUuid) -> tuple[DeviceNode, ...]:
        """Device nodes of one card; the minor is asked for each time, because it changes."""
        with self._nvml.on(gpu) as handle:
            minor = self._nvml.minor(handle)
        return gpu_nodes(self._root, minor, self._host_root)

    def control_nodes(self) -> tuple[DeviceNode, ...]:
        """Device nodes that all cards share."""
        return control_nodes(self._root, self._host_root)

    def files(self) -> DriverFiles:
        """The driver's files; searched again when the driver version or a folder changed."""
        return self._files.files(self._nvml.driver_version())

    def toolkit_edits(self, files: DriverFiles) -> Mapping[str, Any] | None:
        """What the NVIDIA Container Toolkit puts into every container; None without it."""
        return self._toolkit.edits(files)

    def processes(
        self, gpu: GpuUuid, placement: Placement | None = None
    ) -> tuple[GpuProcess, ...]:
        """Who has a compute context on the card, or on its partition at this place."""
        with self._nvml.on(gpu) as handle:
            found = self._nvml.processes(handle)
        if placement is None or not found:
            return found
        instance = self._mig.instance_id(gpu, placement)
        return tuple(each for each in found if each.gpu_instance == instance)

    def uses(self, gpu: GpuUuid) -> tuple[ProcessUse, ...]:
        """What each process uses of the card, clients of MPS included, and in which pod it is."""
        return self._usage.uses(gpu)

    @property
    def known_folders(self) -> dict[GpuUuid, MpsFolders]:
        """Where clients find the daemon of each card that was ever seen served; to be added to."""
        return self.mps.folders

    def mps_folders(self, gpus: Iterable[GpuUuid]) -> dict[GpuUuid, MpsFolders]:
        """Of those of ``gpus`` that have, or had, a control daemon."""
        return {gpu: self.mps.folders[gpu] for gpu in gpus if gpu in self.mps.folders}

    def time_slice_problem(self, gpu: GpuUuid) -> str:
        """Why the time slice of the card cannot be set; empty where it can."""
        return self._time.problem(gpu)

    def pod_limit_problem(self, gpus: Iterable[GpuUuid]) -> str | None:
        """Why pods cannot be limited; empty where they can, None where none of ``gpus`` tells."""
        return self._pods.problem(gpus)

    def has_cgroup(self, pod: str) -> bool:
        """Whether the pod with this UID has a cgroup on this node."""
        return self._pods.has_cgroup(pod)

    # Partitions --------------------------------------------------------------------------

    def instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        """Every GPU instance of the card, whoever made it."""
        return self._mig.instances(gpu)

    def partition(self, gpu: GpuUuid, placement: Placement) -> MigDevice | None:
        """The partition at this place as a container needs it; None when there is none."""
        return self._mig.device(gpu, placement)

    # Steps -------------------------------------------------------------------------------

    def do(self, step: Step) -> None:
        """Make it so; nothing to do is success."""
        match step:
            case SetComputeMode(gpu, mode):
                self._set(gpu, mode)
            case EnsureMigMode():
                self._mig.ensure_mode(step)
            case CreateMigDevice():
                self._mig.create(step)
            case ServeMps():
                self.mps.serve(step)
            case MpsNamespace():
                self.mps.add(step)
            case LimitPod():
                self._pods.set(step)
            case SetTimeSlice(gpu, interval):
                self._time.set(gpu, interval)
            case _:
                assert_never(step)

    def undo(self, step: Step) -> None:
        """Take it back; nothing to do is success."""
        match step:
            case SetComputeMode(gpu, _):
                self._set(gpu, ComputeMode.DEFAULT)
            case EnsureMigMode():
                pass  # the next claim decides
            case CreateMigDevice():
                self._mig.destroy(step)
            case ServeMps(gpu):
                self.mps.stop(gpu)
            case MpsNamespace():
                self.mps.remove(step)
            case LimitPod():
                self._pods.clear(step)
            case SetTimeSlice(gpu):
                self._time.set(gpu, TimeSliceInterval.DEFAULT)
            case _:
                assert_never(step)

    def present(self, step: Step) -> bool:
        """Whether the card is as ``do`` would leave it."""
        match step:
            case SetComputeMode(gpu, mode):
                found = self._mode(gpu) == mode.value
            case EnsureMigMode():
                found = self._mig.in_mode(step)
            case CreateMigDevice():
                found = self._mig.present(step)
            case ServeMps():
                found = self.mps.serves(step)
            case MpsNamespace():
                found = self.mps.has(step)
            case LimitPod():
                found = self._pods.holds(step)
            case SetTimeSlice(gpu, interval):
                found = self._time.read(gpu) is interval
            case _:
                assert_never(step)
        return found

    def _mode(self, gpu: GpuUuid) -> int:
        with self._nvml.on(gpu) as handle:
            return self._nvml.compute_mode(handle)

    def _set(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """Read, write if needed, and read back: a refusal may come as success."""
        if self._mode(gpu) == mode.value:
            return
        with self._nvml.on(gpu) as handle:
            self._nvml.set_compute_mode(handle, mode)
        found = self._mode(gpu)
        if found != mode.value:
            raise HardwareError(
                f"nvmlDeviceSetComputeMode of {gpu}",
                f"reported success, but compute mode {found} is set and {mode.value} "
                f"({mode.name}) was wanted; another program sets it, or MIG mode forbids it",
            )
