"""Finds NVIDIA's control program, or fetches it as Debian packages it (non-free, 180 kB).

The package is unpacked into a cache folder, nothing is installed. Its licence does not let us ship
it, so every machine fetches its own.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

SUITES = {"535": "bookworm", "550": "trixie", "555": "experimental"}
PACKAGE = "nvidia-cuda-mps"

_PROGRAM = "usr/bin/nvidia-cuda-mps-control"
_APT = Path("/etc/apt")
_TIMEOUT_S = 120


class UnavailableError(Exception):
    """The program cannot be had on this machine; the text says why."""


def cache_folder() -> Path:
    """Where unpacked packages are kept."""
    base = os.environ.get("ALIQUOT_E2E_CACHE") or Path.home() / ".cache" / "aliquot-e2e"
    return Path(base) / "mps"


def real_program(version: str = "535") -> Path:
    """The control program of this driver version, one of SUITES.

    Raises:
        UnavailableError: no Debian mirror is configured or reached, or it lacks the package.
    """
    folder = cache_folder() / version
    with _only_one(cache_folder()):
        if not (folder / _PROGRAM).exists():
            _fetch(folder, SUITES[version])
    return folder / _PROGRAM


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path, suite: str) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"{PACKAGE} is fetched with {tool}, which is not here")
    mirror = _mirror()
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        scratch = Path(name)
        (scratch / "list").write_text(f"deb {mirror} {suite} non-free\n")
        (scratch / "lists" / "partial").mkdir(parents=True)
        (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
        options = (
            f"Dir::Etc::SourceList={scratch}/list",
            "Dir::Etc::SourceParts=-",
            f"Dir::State::Lists={scratch}/lists",
            f"Dir::Cache={scratch}/cache",
            "APT::Sandbox::User=",
        )
        apt = ["apt-get", "-qq", *(word for one in options for word in ("-o", one))]
        _run([*apt, "update"], scratch)
        _run([*apt, "download", f"{PACKAGE}/{suite}"], scratch)
        package = next(scratch.glob("*.deb"))
        _run(["dpkg-deb", "-x", str(package), str(scratch / "tree")], scratch)
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "tree").rename(folder)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{command[0]} took more than {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")


def _mirror() -> str:
    """The Debian mirror that this machine uses already."""
    for uri in _configured_uris():
        if uri.rstrip("/").endswith("/debian"):
            return uri
    raise UnavailableError(f"no Debian mirror is configured below {_APT}")


def _configured_uris() -> Iterable[str]:
    for path in (_APT / "sources.list", *sorted((_APT / "sources.list.d").glob("*"))):
        if not path.is_file():
            continue
        for line in path.read_text(errors="replace").splitlines():
            words = line.split()
            if words[:1] == ["URIs:"]:
                yield from words[1:]
            elif words[:1] == ["deb"]:
                yield from (word for word in words[1:] if "://" in word)
