"""Where a card's files are. Pure but for making and removing them.

``<run dir>/<id>/pipe`` is mounted into containers, ``log`` holds control.log and server.log,
``shm`` becomes /dev/shm of daemon and clients.
"""

import contextlib
import hashlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from mps.protocol import MpsRefusedError, check_gpu
from mps.settings import RUN_DIR

LONGEST_PIPE = 87  # bytes; the control program exits without a word above it
SERVER = "card"  # the one named server of a card under protocol 3
PROBE = "probe"  # the folder in which options of the control program are tried
RUN_MODE = 0o711  # servers run as their clients' users and have to get to the pipe directory

_CONTAINER_FILE = b"system_u:object_r:container_file_t:s0\0"  # what containers may open


@dataclass(frozen=True, slots=True)
class CardPaths:
    """The files of one control daemon."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def group(self) -> str:
        """The name of its cgroup; several supervisors of one host keep theirs apart."""
        if self.folder.parent == RUN_DIR:
            return self.id
        return f"{self.id}-{hashlib.sha256(os.fsencode(self.folder.parent)).hexdigest()[:6]}"

    @property
    def pipe(self) -> Path:
        return self.folder / "pipe"

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def control_log(self) -> Path:
        return self.logs / "control.log"

    @property
    def shm(self) -> Path:
        return self.folder / "shm"

    def namespace(self, name: str) -> Path:
        """What clients of a namespace mount. Raises MpsRefusedError if its path is too long."""
        return _fitting(self.pipe / SERVER / name, "give --run-dir a shorter path")


def short_id(gpu: str) -> str:
    """The first digits of a UUID for people, and a digest: two UUIDs may begin alike."""
    digits = check_gpu(gpu).partition("-")[2]
    return f"{digits[:8]}-{hashlib.sha256(gpu.encode()).hexdigest()[:8]}"


def card_paths(run_dir: Path, gpu: str) -> CardPaths:
    """Raises MpsRefusedError where a pipe directory below ``run_dir`` would be too long."""
    paths = CardPaths(run_dir / short_id(gpu))
    _fitting(paths.pipe, "give --run-dir a shorter path")
    return paths


def _fitting(path: Path, advice: str) -> Path:
    length = len(os.fsencode(path))
    if length > LONGEST_PIPE:
        raise MpsRefusedError(
            f"pipe directory {path} has {length} bytes, the control program takes at most "
            f"{LONGEST_PIPE}; {advice}"
        )
    return path


def make_run_dir(run_dir: Path) -> None:
    """Raises OSError."""
    run_dir.mkdir(parents=True, exist_ok=True)
    run_dir.chmod(RUN_MODE)


def make_folders(paths: CardPaths) -> None:
    """Make what is missing, and empty the pipe directory of what a dead daemon left in it.

    The directories stay the ones they are: containers have them mounted. Raises OSError.
    """
    for folder, mode in (
        (paths.folder, RUN_MODE),
        (paths.pipe, 0o755),  # clients of any user look up sockets here
        (paths.logs, 0o700),
        (paths.shm, 0o1777),  # as /dev/shm everywhere
    ):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    _label(paths)
    for found in paths.pipe.rglob("*"):
        if not stat.S_ISDIR(found.lstat().st_mode):
            found.unlink()


def _label(paths: CardPaths) -> None:
    """With SELinux containers may only open what carries their label."""
    if not Path("/sys/fs/selinux/enforce").exists():
        return
    for folder in (paths.pipe, paths.shm):
        with contextlib.suppress(OSError):
            os.setxattr(folder, "security.selinux", _CONTAINER_FILE)


def remove_folders(paths: CardPaths) -> None:
    """Raises OSError for anything but that they are gone."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(paths.folder)
