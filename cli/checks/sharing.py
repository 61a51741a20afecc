"""What shares need: the MPS supervisor, settable time slices, cards that nobody else shares."""

import contextlib
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from cli import records
from cli.checks.finding import Finding, fail, ok, warn
from driver.errors import DriverError
from driver.hw.cgroups import PodCgroups
from driver.hw.codes import optional
from driver.hw.mps import MpsCards
from driver.hw.nvml import Nvml, load_library
from driver.hw.podlimits import PodLimits
from driver.hw.timeslice import TimeSlices
from driver.model.claims import Record
from driver.model.gpu import ComputeMode
from driver.model.ids import GpuUuid
from driver.plan.sharing import has_new_driver, why_no_cgroup
from driver.settings import Settings
from mps.client import MpsClient
from mps.protocol import CardState, SupervisorInfo

AREA = "Sharing"

_TIMEOUT_S = 3.0
_DEFAULT_PIPES = "tmp/nvidia-mps"  # of every control daemon that is started without another one


# Pure ------------------------------------------------------------------------------------


def judge_supervisor(info: SupervisorInfo) -> list[Finding]:
    """What it tells of itself."""
    check = "MPS control program"
    if not info.protocols:
        return [
            warn(
                check,
                info.failure or f"{info.program} does not work",
                "nvidia-cuda-mps-control of the installed driver",
                "install it, and name it to the supervisor (--control-program, --driver-root)",
            )
        ]
    version = "unknown" if info.version is None else info.version
    protocols = " and ".join(map(str, info.protocols))
    found = [ok(check, f"{info.program}, driver branch {version}, protocol {protocols}")]
    if not info.multi_user:
        found.append(
            warn(
                "MPS users",
                "one server serves one user: pods that run as different users wait for each other",
                "a control program with -multiuser-server (driver 555 and newer)",
                "update the driver, or let the pods that share a card run as the same user",
            )
        )
    return found


def judge_daemons(states: Iterable[CardState], needed: Iterable[GpuUuid]) -> list[Finding]:
    """Control daemons that do not run, are missing, or are nobody's."""
    there = {state.spec.gpu: state for state in states}
    wanted = set(needed)
    findings = [
        fail(
            f"MPS of card {gpu}",
            there[gpu].failure or "its control daemon does not run",
            "a control daemon that answers",
            "look at the supervisor's log and at control.log beside "
            f"{there[gpu].pipe_directory}; it is started again by itself",
        )
        for gpu in sorted(there)
        if not there[gpu].running
    ]
    findings += [
        fail(
            f"MPS of card {gpu}",
            "claims have shares of it, and it has no control daemon",
            "a control daemon",
            "the plugin starts it with its next reconciling; is the plugin running?",
        )
        for gpu in sorted(wanted - there.keys())
    ]
    findings += [
        warn(
            f"MPS of card {gpu}",
            "a control daemon runs, and no claim has a share of it",
            "none",
            "the plugin stops it with its next reconciling; is the plugin running?",
        )
        for gpu in sorted(there.keys() - wanted)
    ]
    return findings or [ok("MPS daemons", f"{len(there)} run, one for each card that is shared")]


def judge_modes(modes: Mapping[GpuUuid, int], held: Iterable[GpuUuid]) -> list[Finding]:
    """Compute modes that no claim has asked for."""
    names = {mode.value: mode.name for mode in ComputeMode}
    left = {gpu: mode for gpu, mode in modes.items() if mode and gpu not in set(held)}
    return [
        warn(
            f"compute mode of card {gpu}",
            f"{names.get(mode, mode)}, and no claim holds the card",
            ComputeMode.DEFAULT.name,
            f"nvidia-smi -i {gpu} -c DEFAULT; the plugin takes EXCLUSIVE_PROCESS back by itself",
        )
        for gpu, mode in sorted(left.items())
    ] or [ok("compute modes", "nothing is left behind")]


def judge_pod_limits(problem: str | None, driver_version: str) -> Finding:
    """Whether the strongest limit of a share's memory can be had. ``problem``: what is missing
    beside the driver; None: no card tells now."""
    check = "memory limits by cgroup"
    if why := why_no_cgroup(problem or "", driver_version):
        if not has_new_driver(driver_version):
            return ok(check, f"not offered: {why}")
        return warn(
            check,
            why,
            "pods whose cgroup can be limited: without it requireEnforcement: cgroup is refused",
            "cgroup v2 alone on the node, seen at --cgroup-root, and a kubelet with "
            "--cgroups-per-qos",
        )
    if problem is None:
        return ok(check, "no card that is not in MIG mode tells now")
    return ok(check, f"driver {driver_version} can limit pods, their cgroups are there")


# Reading ---------------------------------------------------------------------------------


def check(settings: Settings) -> list[Finding]:
    """Asks the supervisor and the cards; changes nothing."""
    held = _records(settings)
    shared = {each.gpu for one in held for each in one.held if each.type == "mps"}
    findings = _supervisor(settings, shared)
    findings.append(check_default_pipes(settings.root))
    with contextlib.suppress(DriverError):  # said where cards are looked at
        findings += _cards(settings, {gpu for one in held for gpu in one.gpus})
    return findings


def _records(settings: Settings) -> list[Record]:
    """None where the journal cannot be read: said where leftovers are looked at."""
    try:
        held = records.read(settings.journal_dir, settings.cdi_dir, settings.driver_name)
    except (DriverError, OSError):
        return []
    return [entry.record for entry in held.entries]


def _supervisor(settings: Settings, shared: Iterable[GpuUuid]) -> list[Finding]:
    if settings.mps_socket is None:
        return [ok("MPS supervisor", "none is wanted (--mps-socket is empty): no shares by MPS")]
    mps = MpsCards(MpsClient(settings.mps_socket, _TIMEOUT_S))
    try:
        info, states = mps.info(), mps.cards().values()
    except DriverError as error:
        level = fail if shared else warn
        return [
            level(
                "MPS supervisor",
                str(error),
                "an answer: without it shares by MPS are not offered",
                "start it (`aliquot mps serve`, DaemonSet aliquot-mps), or leave the mode mps out "
                "of the node policy",
            )
        ]
    findings = [ok("MPS supervisor", f"process {info.pid} answers at {settings.mps_socket}")]
    findings += judge_supervisor(info)
    return findings + judge_daemons(states, shared)


def check_default_pipes(root: Path) -> Finding:
    """Whether somebody else runs a control daemon where all programs look for one."""
    check, folder = "default MPS pipe directory", root / _DEFAULT_PIPES
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(str(folder / "control"))
        except OSError:
            return ok(check, f"nobody listens in {folder}")
    return warn(
        check,
        f"a control daemon that is not of this node's supervisor listens in {folder}",
        "none: it holds cards that claims are to have",
        f"stop it: echo quit | CUDA_MPS_PIPE_DIRECTORY={folder} nvidia-cuda-mps-control",
    )


def _cards(settings: Settings, held: Iterable[GpuUuid]) -> list[Finding]:
    nvml = Nvml()
    load_library(settings.driver_root)
    nvml.open()
    try:
        gpus = [nvml.uuid(nvml.handle_at(index)) for index in range(nvml.count())]
        modes = {gpu: nvml.compute_mode(nvml.handle(gpu)) for gpu in gpus}
        limits = PodLimits(nvml, PodCgroups(settings.cgroup_root))
        problem = limits.problem(gpu for gpu in gpus if not _in_mig_mode(nvml, gpu))
        pods = judge_pod_limits(problem, nvml.driver_version())
    finally:
        nvml.close()
    return [_time_slices(settings.root, gpus), pods, *judge_modes(modes, held)]


def _in_mig_mode(nvml: Nvml, gpu: GpuUuid) -> bool:
    mode = optional(lambda: nvml.mig_mode(nvml.handle(gpu)))
    return mode is not None and mode.current


def _time_slices(root: Path, gpus: list[GpuUuid]) -> Finding:
    check = "time slices"
    problem = TimeSlices(root).problem(gpus[0]) if gpus else ""
    if not problem:
        return ok(check, "nvidia-smi compute-policy answers")
    return warn(
        check,
        problem,
        "nvidia-smi with compute-policy: without it claims cannot ask for an interval",
        "install NVIDIA's utilities of driver 455 or newer below --driver-root",
    )
