"""Where a plugin's sockets stand, and what may be wrong with that."""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

# sun_path holds 108 bytes with the closing NUL (unix(7)); gRPC refuses longer names.
SOCKET_PATH_MAX = 107


def _digest(text: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).decode()


def registration_names(driver: str, instance: str | None = None) -> tuple[str, ...]:
    """File names for the registration socket, best first.

    The three forms of the Go library since 1.37 (``dra/kubeletplugin/draplugin.go``): with the
    instance's UID, with its hash, with the hash of both. Without an instance there is one name.
    """
    if instance is None:
        return (f"{driver}-reg.sock", f"dra-{_digest(driver, 16).rstrip('=')}-reg.sock")
    return (
        f"{driver}-{instance}-reg.sock",
        f"{driver}-{_digest(instance, 8).rstrip('=')}-reg.sock",
        f"dra-{_digest(driver + chr(0) + instance, 16).rstrip('=')}-reg.sock",
    )


@dataclass(frozen=True, slots=True)
class PluginPaths:
    """The folders and sockets of one plugin. The kubelet must see them under the same paths."""

    plugin_dir: Path
    registry_dir: Path
    dra_socket: Path
    registration_socket: Path
    own_names: bool = False  # no other instance has sockets of these names

    @property
    def locks(self) -> tuple[Path, Path]:
        """One lock a socket folder. The kubelet's watcher ignores dot files in its registry."""
        driver_lock = f".{self.registration_socket.name}.lock"
        return self.plugin_dir / "dra.lock", self.registry_dir / driver_lock


def plugin_paths(
    driver: str,
    *,
    kubelet_root: Path = Path("/var/lib/kubelet"),
    plugin_dir: Path | None = None,
    registry_dir: Path | None = None,
    instance: str | None = None,
) -> PluginPaths:
    """The usual places below ``kubelet_root`` unless a folder is given.

    Raises:
        ValueError: a socket path is longer than 107 bytes; the text says by how much and which
            folder to shorten.
    """
    folder = (plugin_dir or kubelet_root / "plugins" / driver).absolute()
    registry = (registry_dir or kubelet_root / "plugins_registry").absolute()
    dra = folder / ("dra.sock" if instance is None else f"dra-{instance}.sock")
    _check_length(dra, "the plugin folder")
    names = registration_names(driver, instance)
    fitting = [name for name in names if _length(registry / name) <= SOCKET_PATH_MAX]
    if not fitting:
        _check_length(registry / names[-1], "the registry folder")
    return PluginPaths(folder, registry, dra, registry / fitting[0], instance is not None)


def _length(path: Path) -> int:
    return len(str(path).encode())


def _check_length(path: Path, what: str) -> None:
    if _length(path) > SOCKET_PATH_MAX:
        raise ValueError(
            f"socket path {path} has {_length(path)} bytes, at most {SOCKET_PATH_MAX} are "
            f"possible: choose a shorter path for {what}"
        )
