"""The files of a simulated node outside NVML: what /dev, /proc, /sys and the driver root show."""

import contextlib
import os
import shlex
import shutil
import stat
import sys
import uuid
from pathlib import Path

from driver.sim.profiles import PROFILES, Profile
from driver.sim.topology import Card, cards
from driver.sim.world import World

NVIDIA_MAJOR, UVM_MAJOR, CAPS_MAJOR, IMEX_MAJOR = 195, 510, 235, 234
_NULL = (1, 3)  # numbers of /dev/null: a harmless device that every kernel has
_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
_CAPABILITIES = "proc/driver/nvidia/capabilities"
_PACKAGES = Path(__file__).resolve().parent.parent.parent
_CONFIG, _MONITOR = 1, 2  # minors of the management capabilities
_MIG_GPUS, _MIG_INSTANCES, _MIG_COMPUTE = 32, 15, 8  # what the kernel's table has room for


def write_node(root: Path, world: World) -> None:
    """Write every file that is missing; files that change by themselves are kept."""
    profile = PROFILES[world.profile]
    _dev(root, profile, world.count)
    _proc(root, profile)
    for card in cards(profile, world.count, world.seed):
        _sys(root, profile, card)
    boot_id = root / "proc/sys/kernel/random/boot_id"
    if not boot_id.exists():
        new_boot_id(root)
    write_driver(root, world)


def new_boot_id(root: Path) -> None:
    """What the kernel does at each start."""
    _replace(root / "proc/sys/kernel/random/boot_id", f"{uuid.uuid4()}\n")


def write_driver(root: Path, world: World) -> None:
    """The driver's libraries, programs and version file, as far as they are installed."""
    _libraries(root / _LIBRARIES, world)
    _program(root, world)
    loaded = root / "proc/driver/nvidia/version"
    if world.library == "not_loaded":
        loaded.unlink(missing_ok=True)
        return
    kernel_module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
    _replace(loaded, f"{kernel_module}  {world.driver_version}\n")


def _libraries(folder: Path, world: World) -> None:
    """Each library and its links; what another version left goes."""
    names = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
    links: dict[str, str] = {}
    for name in names if world.library != "missing" else (names[0], names[2]):
        library = f"{name}.so.{world.driver_version}"
        links |= {f"{name}.so.1": library, f"{name}.so": f"{name}.so.1"}
        _replace(folder / library, f"simulated {library}\n")
    for old in folder.glob("lib*.so*"):
        wanted = (
            links.get(old.name) == os.readlink(old)
            if old.is_symlink()
            else (old.name in links.values())
        )
        if not wanted:
            old.unlink()
    for link, points_to in links.items():
        with contextlib.suppress(FileExistsError):
            (folder / link).symlink_to(points_to)


def _program(root: Path, world: World) -> None:
    """``nvidia-smi``: its compute-policy works on this node's state; in a container, which has
    no such Python, it only tells its version."""
    path = root / "usr/bin/nvidia-smi"
    if world.smi == "missing":
        path.unlink(missing_ok=True)
        return
    python, packages = shlex.quote(sys.executable), shlex.quote(str(_PACKAGES))
    run = f"{python} -P -m driver.sim.smi {shlex.quote(str(root.absolute()))}"
    version = f"echo 'simulated nvidia-smi, driver {world.driver_version}'"
    _replace(
        path,
        f'#!/bin/sh\n[ -x {python} ] && PYTHONPATH={packages} exec {run} "$@"\n{version}\n',
    )
    path.chmod(0o755)


def write_process(root: Path, pid: int, name: str, pod: str | None) -> None:
    """A process as ``/proc`` shows it, in the cgroup of a container of ``pod`` (cgroup v2, as the
    kubelet's systemd driver names it)."""
    folder = root / "proc" / str(pid)
    place = "/system.slice"
    if pod is not None:
        place = f"/kubepods.slice/kubepods-pod{pod.replace('-', '_')}.slice/cri-{pid}.scope"
    _replace(folder / "cgroup", f"0::{place}\n")
    _replace(folder / "comm", f"{name[:15]}\n")


def _dev(root: Path, profile: Profile, count: int) -> None:
    names = [f"nvidia{minor}" for minor in range(count)]
    names += ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
    if profile.mig_capable:
        names += [f"nvidia-caps/nvidia-cap{minor}" for minor in (_CONFIG, _MONITOR)]
    (root / "dev" / "nvidia-caps").mkdir(parents=True, exist_ok=True)
    for name in names:
        device_node(root / "dev" / name)


def device_node(path: Path) -> None:
    """A character device that reads empty; a plain file where the process may not make one."""
    if path.exists():
        return
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*_NULL))
    except PermissionError:
        path.touch()
    path.chmod(0o666)  # whatever the umask


def _proc(root: Path, profile: Profile) -> None:
    majors = (
        (NVIDIA_MAJOR, "nvidia"),
        (NVIDIA_MAJOR, "nvidiactl"),
        (IMEX_MAJOR, "nvidia-caps-imex-channels"),
        (CAPS_MAJOR, "nvidia-caps"),
        (UVM_MAJOR, "nvidia-uvm"),
    )
    rows = "".join(f"{major:3} {name}\n" for major, name in majors)
    devices = f"Character devices:\n  1 mem\n{rows}\nBlock devices:\n259 blkext\n"
    _replace(root / "proc/devices", devices)
    capabilities = root / _CAPABILITIES / "mig"
    for name, minor, mode in (("config", _CONFIG, 0o400), ("monitor", _MONITOR, 0o444)):
        _replace(capabilities / name, capability(minor, mode))
    if profile.mig_capable:
        _replace(root / "proc/driver/nvidia-caps/mig-minors", _mig_minors())


def capability(minor: int, mode: int) -> str:
    """The text of a file under ``/proc/driver/nvidia/capabilities``."""
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def write_instance(root: Path, gpu_minor: int, instance: int, compute: int | None = None) -> None:
    """The capability file of a GPU or compute instance that was created."""
    minor = mig_minor(gpu_minor, instance, compute)
    _replace(_instance(root, gpu_minor, instance, compute) / "access", capability(minor, 0o444))


def remove_instance(root: Path, gpu_minor: int, instance: int, compute: int | None = None) -> None:
    """The files of an instance that was destroyed."""
    shutil.rmtree(_instance(root, gpu_minor, instance, compute), ignore_errors=True)


def remove_all_instances(root: Path, gpu_minor: int) -> None:
    """The files of all instances of a card, as after its reset."""
    shutil.rmtree(root / f"{_CAPABILITIES}/gpu{gpu_minor}", ignore_errors=True)


def _instance(root: Path, gpu_minor: int, instance: int, compute: int | None) -> Path:
    folder = root / f"{_CAPABILITIES}/gpu{gpu_minor}/mig/gi{instance}"
    return folder if compute is None else folder / f"ci{compute}"


def mig_minor(gpu_minor: int, instance: int, compute: int | None = None) -> int:
    """Minor of a capability node; holds for all published samples of ``mig-minors``."""
    base = 3 + 135 * gpu_minor + 9 * instance
    return base if compute is None else base + 1 + compute


def _mig_minors() -> str:
    lines = [f"config {_CONFIG}", f"monitor {_MONITOR}"]
    for gpu in range(_MIG_GPUS):
        for instance in range(_MIG_INSTANCES):
            place = f"gpu{gpu}/gi{instance}"
            lines.append(f"{place}/access {mig_minor(gpu, instance)}")
            lines += [
                f"{place}/ci{ci}/access {mig_minor(gpu, instance, ci)}"
                for ci in range(_MIG_COMPUTE)
            ]
    return "\n".join(lines) + "\n"


def _sys(root: Path, profile: Profile, card: Card) -> None:
    """The card's folder at its real place, then the link to it that everybody uses."""
    link = root / "sys/bus/pci/devices" / card.pci.address
    if link.exists():
        return
    place = root.joinpath("sys/devices", *card.path)
    place.mkdir(parents=True, exist_ok=True)
    device, vendor = profile.pci_device_id >> 16, profile.pci_device_id & 0xFFFF
    for name, text in (
        ("numa_node", str(card.numa_node)),
        ("vendor", f"0x{vendor:04x}"),
        ("device", f"0x{device:04x}"),
        ("class", "0x030200"),
    ):
        (place / name).write_text(text + "\n")
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(Path("../../../devices", *card.path))


def _replace(path: Path, text: str) -> None:
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)
