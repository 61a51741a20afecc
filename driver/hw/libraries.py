"""The files of the driver that a container needs, found below a root."""

import fnmatch
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from driver.errors import HardwareError
from driver.hw.folders import (
    LIBRARY_FOLDERS,
    PROGRAM_FOLDERS,
    inside,
    library_folders,
    program_folders,
)

PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
# The host's default MPS folder is not among them: it would collide with a claim's own.
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_GRAIN_NS = 1_000_000_000  # far above the grain of any file system's clock
_FIRMWARE = ("lib/firmware/nvidia", "usr/lib/firmware/nvidia")


_Stamps: TypeAlias = dict[str, int | None]  # path to modification time in ns; None: absent


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What to mount and link in every container. Paths are absolute, sorted, each one once."""

    driver_version: str
    mounts: tuple[tuple[str, str], ...]  # (path on the host, path in the container)
    symlinks: tuple[tuple[str, str], ...]  # (target as the link says it, link in the container)
    library_folders: tuple[str, ...]  # in the container; for ldconfig, the one of libcuda first


def driver_files(root: Path, driver_version: str, host_root: Path | None = None) -> DriverFiles:
    """Libraries of exactly ``driver_version``, programs, firmware and sockets.

    ``root`` is where the driver root is seen from here, ``host_root`` where the host has it (the
    same unless the driver runs in a container). Raises HardwareError where libcuda of that
    version is missing: a driver update that is half done, or the wrong root.
    """
    base = root.resolve()
    libraries = _libraries(base, driver_version)
    if not any(path.name.startswith("libcuda.so.") for path in libraries):
        raise HardwareError(
            f"driver libraries below {root}",
            f"no libcuda.so.{driver_version} in any library folder, though NVML reports driver "
            f"{driver_version}; finish the driver's installation or set the driver root to the "
            "folder under which it is mounted",
        )
    others = [*_programs(base), *_firmware(base, driver_version), *_sockets(base)]
    host = host_root or base
    found = dict.fromkeys([*libraries, *others])
    mounts = [(str(host / path.relative_to(base)), _within(base, path)) for path in found]
    return DriverFiles(
        driver_version=driver_version,
        mounts=tuple(sorted(mounts)),
        symlinks=_symlinks(base, libraries),
        library_folders=_folders(base, libraries),
    )


class DriverFileCache:
    """``driver_files``, searched again when the driver version or a folder it reads has changed.

    A set of files found while the driver is being installed must not stay
    (dra-driver-nvidia-gpu#1380), so nothing is kept while a folder is fresh.
    """

    def __init__(self, root: Path, host_root: Path | None = None) -> None:
        self._root = root
        self._host_root = host_root
        self._kept: tuple[DriverFiles, _Stamps] | None = None

    def files(self, driver_version: str) -> DriverFiles:
        """As ``driver_files``, and with its errors."""
        kept = self._kept
        if kept and kept[0].driver_version == driver_version and kept[1] == _restamp(kept[1]):
            return kept[0]
        stamps = _restamp(dict.fromkeys(_watched(self._root), None))
        found = driver_files(self._root, driver_version, self._host_root)
        self._kept = (found, stamps) if _settled(stamps) else None
        return found


def _watched(root: Path) -> list[str]:
    """Every path whose change may change the outcome, existing or not."""
    named = [*LIBRARY_FOLDERS, *PROGRAM_FOLDERS, *_FIRMWARE, "etc/ld.so.conf", "etc/ld.so.conf.d"]
    named += [str(Path(path).parent) for path in _SOCKETS]
    return [*(str(root / path) for path in named), *map(str, _folders_with_plugins(root))]


def _restamp(paths: Iterable[str]) -> _Stamps:
    return {path: _stamp(path) for path in paths}


def _stamp(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _settled(stamps: _Stamps) -> bool:
    """Whether a change from now on shows: the kernel stamps with a grain of some ms."""
    newest = max((stamp for stamp in stamps.values() if stamp is not None), default=0)
    return time.time_ns() - newest > _GRAIN_NS


def _libraries(base: Path, version: str) -> tuple[Path, ...]:
    found = (
        Path(entry.path)
        for folder in _folders_with_plugins(base)
        for entry in os.scandir(folder)
        if entry.name.endswith(f".so.{version}") and entry.is_file(follow_symlinks=False)
    )
    return tuple(sorted(found))


def _folders_with_plugins(base: Path) -> tuple[Path, ...]:
    """vdpau has a folder of its own in each library folder."""
    folders = library_folders(base)
    plugins = (folder / "vdpau" for folder in folders)
    return (*folders, *(one for one in plugins if one.is_dir()))


def _programs(base: Path) -> list[Path]:
    """The first of each name, as a shell would find it. The path in the container is the one
    asked for, so links are kept as they are named."""
    first: dict[str, Path] = {}
    for folder in program_folders(base):
        for name in PROGRAMS:
            if name not in first and inside(base, _within(base, folder / name)).is_file():
                first[name] = folder / name
    return list(first.values())


def _firmware(base: Path, version: str) -> list[Path]:
    folders = dict.fromkeys(inside(base, f"{path}/{version}") for path in _FIRMWARE)
    return [
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if fnmatch.fnmatch(path.name, "gsp*.bin")
    ]


def _sockets(base: Path) -> list[Path]:
    paths = (inside(base, path) for path in _SOCKETS)
    return [path for path in paths if path.is_socket()]


def _symlinks(base: Path, libraries: tuple[Path, ...]) -> tuple[tuple[str, str], ...]:
    """The links beside the libraries that end at one of them, those that point straight at one
    first: libcuda.so.1 before libcuda.so."""
    wanted = set(libraries)
    links = (
        Path(entry.path)
        for folder in {path.parent for path in libraries}
        for entry in os.scandir(folder)
        if entry.is_symlink()
    )
    ours = [link for link in links if inside(base, _within(base, link)) in wanted]
    names = {link.name for link in ours}
    pairs = [(os.readlink(link), _within(base, link)) for link in ours]
    return tuple(sorted(pairs, key=lambda pair: (Path(pair[0]).name in names, pair)))


def _folders(base: Path, libraries: tuple[Path, ...]) -> tuple[str, ...]:
    """The folder of libcuda first: it is the one that CUDA programs are pointed at."""
    first = [path for path in libraries if path.name.startswith("libcuda.so.")]
    return tuple(dict.fromkeys(_within(base, path.parent) for path in (*first, *libraries)))


def _within(base: Path, path: Path) -> str:
    """``path`` as a process sees it whose root is ``base``."""
    return f"/{path.relative_to(base)}"
