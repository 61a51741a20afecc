"""What a cluster needs of the distribution (Debian, Ubuntu), and how it is installed."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from e2e.cluster.console import phase, say
from e2e.cluster.errors import SetupError
from mps.testing.real import SUITES, UnavailableError, real_program

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CNI_FOLDER = Path("/usr/lib/cni")

PACKAGES: dict[str, Path | str] = {
    "runc": "runc",
    "containernetworking-plugins": CNI_FOLDER / "bridge",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "busybox-static": Path("/bin/busybox"),
    "iproute2": "ip",
    "util-linux": "nsenter",
    "gcc": "gcc",
    "libc6-dev": Path("/usr/include/stdlib.h"),
}
"""Debian package to the program (or file) that it brings."""


def find_program(name: str) -> str | None:
    """The full path of a program; looks into the sbin folders also when PATH lacks them."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def program(name: str) -> str:
    """As ``find_program``. Raises SetupError if it is absent."""
    if found := find_program(name):
        return found
    raise SetupError(f"program {name} not found on PATH; python -m e2e.cluster.build installs it")


def _present(what: Path | str) -> bool:
    return what.exists() if isinstance(what, Path) else find_program(what) is not None


def missing(
    present: Callable[[Path | str], bool] = _present, wanted: Mapping[str, Path | str] = PACKAGES
) -> list[str]:
    """The Debian packages whose program or file is absent, in the order of ``wanted``."""
    return [package for package, what in wanted.items() if not present(what)]


def ensure(wanted: Mapping[str, Path | str] = PACKAGES) -> None:
    """Install what is missing with apt-get. Raises SetupError with the command to run by hand."""
    absent = missing(wanted=wanted)
    if absent:
        _install(absent)
        if still := missing(wanted=wanted):
            raise SetupError(f"apt-get installed {' '.join(still)}, yet their files are absent")
    try:
        mps_program()
    except SetupError as error:  # only tests of shares need it
        say(str(error))


def mps_program() -> Path:
    """NVIDIA's real control program, the newest that Debian has; fetched once, then kept.

    Raises SetupError with the reason for every version.
    """
    why = []
    for version in sorted(SUITES, reverse=True):
        try:
            return real_program(version)
        except UnavailableError as error:
            why.append(f"{version}: {error}")
    raise SetupError(f"nvidia-cuda-mps-control cannot be had: {'; '.join(why)}")


def _install(packages: Iterable[str]) -> None:
    names = list(packages)
    by_hand = f"apt-get install {' '.join(names)}"
    if find_program("apt-get") is None or os.geteuid() != 0:
        raise SetupError(f"this machine lacks {', '.join(names)}; as root: {by_hand}")
    say(f"installing {' '.join(names)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-qq", "-y", "--no-install-recommends"]
    with phase("packages"):
        for command in (["update", "-qq"], ["install", *options, *names]):
            done = subprocess.run(
                ["apt-get", *command], env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise SetupError(f"{by_hand}: {done.stderr.strip() or done.stdout.strip()}")
