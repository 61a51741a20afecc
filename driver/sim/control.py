"""Change a simulated node from outside: faults, events, lost cards, reboots, driver versions.

Every function takes the node's root folder and works from any process; processes that use the
node see the change at their next NVML call.
"""

import random
from pathlib import Path

from driver.sim import files
from driver.sim.nvml import library
from driver.sim.nvml.events import XID
from driver.sim.nvml.registry import resolve
from driver.sim.profiles import PROFILES
from driver.sim.store import Store
from driver.sim.world import (
    Event,
    Fault,
    GpuState,
    Library,
    MigUuids,
    Process,
    ProcessKind,
    ResetPolicy,
    Smi,
    World,
)

__all__ = [
    "clear_faults",
    "clear_processes",
    "inject",
    "lose",
    "place_process",
    "reboot",
    "reset",
    "restore",
    "set_busy",
    "set_driver_version",
    "set_ecc_errors",
    "set_latency",
    "set_library",
    "set_link",
    "set_mig_mode",
    "set_mig_reset",
    "set_mig_uuids",
    "set_privileged",
    "set_process",
    "set_recovery_action",
    "set_remapped_rows",
    "set_smi",
    "xid",
]

_ALL = 0xFFFFFFFF  # GPU and compute instance of an event that concerns the whole card
_CALLS = library.FAMILIES  # imported so that ``resolve`` knows every call


def lose(root: Path, index: int) -> None:
    """The card falls off the bus: its calls answer GPU_IS_LOST (15); it is still counted."""
    with Store(root).update() as world:
        world.change(index).lost = True


def restore(root: Path, index: int) -> None:
    """The card answers again."""
    with Store(root).update() as world:
        world.change(index).lost = False


def inject(
    root: Path,
    call: str,
    code: int,
    *,
    count: int | None = 1,
    skip: int = 0,
    gpu: int | None = None,
) -> None:
    """Make a call answer an NVML code instead of doing its work.

    ``call`` is a C symbol or pynvml's name for it; a name with several versions means all of
    them. It goes well ``skip`` times, then fails ``count`` times (None: until cleared). ``gpu``
    limits it to one card.

    Raises:
        ValueError: the simulator has no such call.
    """
    fault = Fault(resolve(call), code, count, skip, gpu)
    with Store(root).update() as world:
        world.faults.append(fault)


def clear_faults(root: Path) -> None:
    """Forget every injected fault."""
    with Store(root).update() as world:
        world.faults = []


def set_latency(root: Path, call: str, seconds: float) -> None:
    """Make a call (named as for ``inject``) take that much longer; 0 ends it.

    Raises:
        ValueError: the simulator has no such call.
    """
    with Store(root).update() as world:
        for symbol in resolve(call):
            world.latency[symbol] = seconds
        world.latency = {name: value for name, value in world.latency.items() if value > 0}


def xid(
    root: Path, index: int, number: int, *, gpu_instance: int = _ALL, compute_instance: int = _ALL
) -> None:
    """Queue an XID event. Each event set of each process that registered the card gets it once."""
    with Store(root).update() as world:
        world.change(index)  # refuses an unknown card
        world.add_event(Event(0, index, XID, number, gpu_instance, compute_instance))


def set_recovery_action(root: Path, index: int, action: int) -> None:
    """What ``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`` says (0 none, 1 reset, 2 reboot, 3 drain…)."""
    with Store(root).update() as world:
        world.change(index).recovery_action = action


def set_process(
    root: Path,
    index: int,
    pid: int,
    memory: int | None,
    kind: ProcessKind = "compute",
    *,
    instance: tuple[int, int] = (_ALL, _ALL),
) -> None:
    """A process uses the card, with that many bytes of its memory (None: NVML cannot tell).

    ``kind``: "compute", "graphics", or "mps" for a client of an MPS server. ``instance``: ids of
    the GPU and compute instance it runs on, where the card is in MIG mode.
    """
    with Store(root).update() as world:
        state = world.change(index)
        state.processes = [p for p in state.processes if (p.pid, p.kind) != (pid, kind)]
        state.processes.append(Process(pid, memory, kind, *instance))


def set_busy(root: Path, index: int, pid: int, percent: int) -> None:
    """A process of the card keeps that part of its multiprocessors busy.

    Raises:
        ValueError: the card has no such process.
    """
    with Store(root).update() as world:
        found = [each for each in world.change(index).processes if each.pid == pid]
        if not found:
            raise ValueError(f"card {index} has no process {pid}; make it with set_process first")
        for each in found:
            each.busy = percent


def place_process(root: Path, pid: int, *, name: str = "python3", pod: str | None = None) -> None:
    """What ``/proc`` says of a process: its program, and the pod that its cgroup belongs to."""
    files.write_process(Path(root), pid, name, pod)


def clear_processes(root: Path, index: int) -> None:
    """Every process leaves the card."""
    with Store(root).update() as world:
        world.change(index).processes = []


def set_ecc_errors(root: Path, index: int, *, corrected: int = 0, uncorrected: int = 0) -> None:
    """Errors counted since the driver was loaded; what is new is added to the lifetime counts."""
    with Store(root).update() as world:
        state = world.change(index)
        state.ecc_corrected_ever += max(0, corrected - state.ecc_corrected)
        state.ecc_uncorrected_ever += max(0, uncorrected - state.ecc_uncorrected)
        state.ecc_corrected, state.ecc_uncorrected = corrected, uncorrected


def set_remapped_rows(
    root: Path,
    index: int,
    *,
    corrected: int = 0,
    uncorrected: int = 0,
    pending: bool = False,
    failure: bool = False,
) -> None:
    """Row remapping: rows remapped so far, one waiting for a reset, or one that failed."""
    with Store(root).update() as world:
        state = world.change(index)
        state.remapped_corrected, state.remapped_uncorrected = corrected, uncorrected
        state.remapped_pending, state.remapped_failure = pending, failure


def set_link(root: Path, index: int, link: int, *, active: bool) -> None:
    """Turn one NVLink of a card off or on again."""
    with Store(root).update() as world:
        state = world.change(index)
        others = [down for down in state.links_down if down != link]
        state.links_down = others if active else sorted([*others, link])


def set_mig_mode(root: Path, index: int, *, on: bool) -> None:
    """The card is in MIG mode or not, as after a reset with the mode pending."""
    with Store(root).update() as world:
        state = world.change(index)
        state.mig_current = state.mig_pending = on


def set_mig_reset(root: Path, index: int, policy: ResetPolicy) -> None:
    """How NVML's own reset goes when MIG mode is changed on Ampere.

    ``auto``: it works; ``blocked``: the mode stays pending (RESET_REQUIRED); ``vm``: a reset is
    not possible (NOT_SUPPORTED).
    """
    with Store(root).update() as world:
        world.change(index).mig_reset = policy


def set_mig_uuids(root: Path, policy: MigUuids) -> None:
    """Whether a MIG device made again in the same place has its old UUID or a fresh one.

    NVIDIA's guide and driver disagree, so users of NVML must be right under both.
    """
    with Store(root).update() as world:
        world.mig_uuids = policy


def set_privileged(root: Path, privileged: bool) -> None:
    """Whether callers have root's rights; without, changing calls answer NO_PERMISSION (4)."""
    with Store(root).update() as world:
        world.privileged = privileged


def set_driver_version(root: Path, version: str) -> None:
    """Install another driver. Branch 535 and older lack the calls that their library lacks, those
    before R615 memory limits by cgroup.

    Raises:
        ValueError: not a version such as ``580.105.08``.
    """
    if not version.partition(".")[0].isdigit():
        raise ValueError(f"driver version {version!r}: expected a form such as 580.105.08")
    store = Store(root)
    with store.update() as world:
        world.driver_version = version
        files.write_driver(store.root, world)


def set_library(root: Path, state: Library) -> None:
    """Whether nvmlInit finds the library and a loaded driver (``ok``).

    ``missing``: LIBRARY_NOT_FOUND (12); ``not_loaded``: DRIVER_NOT_LOADED (9). Processes that
    are initialised go on.
    """
    store = Store(root)
    with store.update() as world:
        world.library = state
        files.write_driver(store.root, world)


def set_smi(root: Path, state: Smi) -> None:
    """What ``nvidia-smi`` does: work (``ok``), be ``missing``, fail with a status (``fails``), not
    know compute-policy (``old``), call time slices not supported (``unsupported``), or refuse to
    set them with status 0 (``silent``)."""
    store = Store(root)
    with store.update() as world:
        world.smi = state
        files.write_driver(store.root, world)


def reset(root: Path, index: int) -> None:
    """Reset one card, as ``nvidia-smi --gpu-reset`` does: a pending MIG mode becomes current."""
    store = Store(root)
    with store.update() as world:
        _reset(store.root, index, world.change(index))


def reboot(root: Path, *, permute_minors: bool = False) -> None:
    """Restart the node: new boot id, and of each card only what its own memory keeps.

    Lost everywhere: instances, processes, compute mode, time slice, memory limits of cgroups,
    volatile ECC counts, links turned off, a lost state. MIG mode survives on Ampere and is off on
    Hopper and newer. ``permute_minors`` gives the cards other minor numbers, as a changed probe
    order does. Injected faults stay.
    """
    store = Store(root)
    with store.update() as world:
        world.boots += 1
        needs_reset = PROFILES[world.profile].mig_needs_reset
        for index, state in world.gpus.items():
            _reset(store.root, index, state)
            state.lost, state.compute_mode, state.links_down = False, 0, []
            state.time_slice, state.memory_limits = 0, []
            if not needs_reset:
                state.mig_current = state.mig_pending = False
        if permute_minors:
            for index, minor in enumerate(_permutation(world)):
                world.change(index).minor = minor
        world.events = []
        files.new_boot_id(store.root)


def _reset(root: Path, index: int, state: GpuState) -> None:
    files.remove_all_instances(root, index if state.minor is None else state.minor)
    state.processes, state.instances = [], []
    state.ecc_corrected = state.ecc_uncorrected = 0
    state.remapped_pending = False
    state.recovery_action = 0
    state.mig_current = state.mig_pending


def _permutation(world: World) -> list[int]:
    """Minors other than the present ones wherever there is more than one card."""
    stored = [world.gpu(index).minor for index in range(world.count)]
    present = [index if minor is None else minor for index, minor in enumerate(stored)]
    minors = list(range(world.count))
    generator = random.Random(f"{world.seed}/{world.boots}")  # noqa: S311 - a reproducible order
    generator.shuffle(minors)
    while minors == present and world.count > 1:
        generator.shuffle(minors)
    return minors
