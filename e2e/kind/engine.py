"""The container engine below kind: Docker where its daemon runs, else podman with runc.

podman gets a configuration and a store of its own, below the cache folder: the machine's stay as
they are, and its default network is not the one that the local cluster's bridge has.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import packages
from e2e.cluster.errors import ClusterError, SetupError
from e2e.cluster.targets import cache_folder

PODMAN_PACKAGES: dict[str, Path | str] = {
    "podman": "podman",
    "runc": "runc",
    "netavark": Path("/usr/lib/podman/netavark"),
    "aardvark-dns": Path("/usr/lib/podman/aardvark-dns"),
    "conntrack": "conntrack",
    "iptables": "iptables",
}
_MODULES = Path("/lib/modules")
"""kind mounts it into every node; kernels without modules have no such folder."""
DEFAULT_SUBNET = "10.91.0.0/24"
"""podman's own default is 10.88.0.0/16, which is the local cluster's pod network."""


class LateError(ClusterError):
    """A command was not done in time."""


@dataclass(frozen=True)
class Engine:
    """``docker`` or ``podman``, with the variables that every call to it and to kind needs."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def merged_environment(self) -> dict[str, str]:
        """This process's environment with the engine's own."""
        return {**os.environ, **self.environment}

    def run(
        self, *arguments: str, timeout_s: float | None = 120, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Run one command of the engine. Raises ClusterError with its last words."""
        return run([self.name, *arguments], self.merged_environment(), timeout_s, check=check)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float | None = None,
    *,
    check: bool = True,
) -> "subprocess.CompletedProcess[str]":
    """Run to the end. Raises ClusterError if it fails (unless ``check`` is off), LateError."""
    try:
        done = subprocess.run(
            list(command),
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        raise LateError(
            f"{' '.join(command)}: not done after {timeout_s:g} s; it said last:\n{_tail(text)}"
        ) from error
    if check and done.returncode != 0:
        raise ClusterError(f"{' '.join(command)}:\n{_tail(done.stdout + done.stderr)}")
    return done


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-25:])


def chosen() -> Engine:
    """Docker if its daemon answers, else podman, configured for us.

    ``$ALIQUOT_KIND_ENGINE`` (docker, podman) decides otherwise.
    """
    asked = os.environ.get("ALIQUOT_KIND_ENGINE")
    if asked not in (None, "docker", "podman"):
        raise SetupError(f"ALIQUOT_KIND_ENGINE is {asked!r}; known are docker and podman")
    if asked == "docker" or (asked is None and _docker_answers()):
        return Engine("docker")
    return podman(cache_folder() / "podman")


def _docker_answers() -> bool:
    docker = packages.find_program("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


def podman(folder: Path) -> Engine:
    """Rootful podman with its store, networks and configuration below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    _MODULES.mkdir(parents=True, exist_ok=True)
    containers, storage = folder / "containers.conf", folder / "storage.conf"
    containers.write_text(containers_conf(folder), encoding="utf-8")
    storage.write_text(storage_conf(folder), encoding="utf-8")
    return Engine(
        "podman",
        {
            "CONTAINERS_CONF": str(containers),
            "CONTAINERS_STORAGE_CONF": str(storage),
            "KIND_EXPERIMENTAL_PROVIDER": "podman",
        },
    )


def containers_conf(folder: Path) -> str:
    """containers.conf(5). On the CNI backend nodes do not resolve each other's names."""
    return f"""[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = []
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
default_subnet = "{DEFAULT_SUBNET}"
"""


def storage_conf(folder: Path) -> str:
    """containers-storage.conf(5)."""
    return f"""[storage]
driver = "overlay"
graphroot = "{folder}/store"
runroot = "/run/aliquot-e2e/podman"
"""
