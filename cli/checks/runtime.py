"""Does the container runtime read the folder that the plugin writes CDI specs to?

A runtime without CDI ignores the ids without an error: containers start and see no card
(dra-driver-nvidia-gpu#426).
"""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from cli.checks.finding import Finding, fail, ok, warn
from cli.checks.folders import present, told, unwritable

AREA = "Container runtime"
DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")  # of containerd, CRI-O and the CDI library
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
CRIO_CONFIG = Path("/etc/crio")
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")

Version: TypeAlias = tuple[int, int]

_FIRST_WITH_CDI: Version = (1, 7)
_FIRST_WITH_DEFAULT: Version = (2, 0)  # containerd#9621
# The CRI plugin's sections, newest first: configuration version 3, 2, 1.
_SECTIONS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")


@dataclass(frozen=True, slots=True)
class CdiConfig:
    """What a runtime's configuration says of CDI."""

    enabled: bool | None  # None: not said, the version decides
    dirs: tuple[str, ...] = DEFAULT_DIRS


class ConfigError(Exception):
    """A configuration file that cannot be read; the text names it."""


# Pure ------------------------------------------------------------------------------------


def containerd_cdi(files: Sequence[Mapping[str, Any]]) -> CdiConfig:
    """From the parsed files in the order they are read; a later one overrides an earlier one.

    Sections of another configuration version than the newest that is used are read too, because
    containerd migrates them.
    """
    found: dict[str, Any] = {}
    for config in files:
        plugins = config.get("plugins") or {}
        for section in reversed(_SECTIONS):
            found |= _cdi_keys(plugins.get(section))
    return CdiConfig(found.get("enable_cdi"), tuple(found.get("cdi_spec_dirs", DEFAULT_DIRS)))


def crio_cdi(files: Sequence[Mapping[str, Any]]) -> CdiConfig:
    """CRI-O reads CDI specs always (since 1.23); only the folders can be set."""
    found: dict[str, Any] = {}
    for config in files:
        found |= _cdi_keys((config.get("crio") or {}).get("runtime"))
    return CdiConfig(True, tuple(found.get("cdi_spec_dirs", DEFAULT_DIRS)))


def judge_containerd(config: CdiConfig, version: Version | None, config_file: Path) -> Finding:
    """Whether CDI is on. ``version`` None: not known."""
    check = "containerd reads CDI"
    wanted = "CDI on"
    turn_on = (
        f"in {config_file}, set enable_cdi = true in the CRI plugin's section "
        f"([plugins.'{_SECTIONS[0]}'] in version 3, [plugins.'{_SECTIONS[1]}'] in version 2), "
        "and restart containerd"
    )
    if version is not None and version < _FIRST_WITH_CDI:
        name = ".".join(map(str, version))
        return fail(
            check, f"containerd {name} has no CDI", "1.7 or newer", "update containerd on the node"
        )
    if config.enabled is False:
        return fail(check, "enable_cdi = false: ids are ignored without an error", wanted, turn_on)
    if config.enabled:
        return ok(check, "enable_cdi = true")
    if version is None:
        return warn(
            check,
            "enable_cdi is not set, and the version of containerd is not known: on by default "
            "from 2.0, off in 1.7",
            wanted,
            turn_on,
        )
    if version < _FIRST_WITH_DEFAULT:
        return fail(check, "enable_cdi is not set and off by default before 2.0", wanted, turn_on)
    return ok(check, f"on by default in containerd {version[0]}.{version[1]}")


def judge_dirs(
    runtime: str, config: CdiConfig, folder: Path, resolved: Mapping[str, str]
) -> Finding:
    """Whether ``folder`` is among the runtime's. ``resolved``: paths with their links followed."""
    check = f"{runtime} reads {folder}"
    read = ", ".join(config.dirs) or "no folder"
    if resolved[str(folder)] in {resolved[each] for each in config.dirs}:
        return ok(check, f"cdi_spec_dirs: {read}")
    return fail(
        check,
        f"cdi_spec_dirs: {read}",
        f"{folder} among them",
        f"start the plugin with --cdi-dir set to one of them, or add {folder} to cdi_spec_dirs of "
        f"{runtime} and restart it",
    )


def version_in(text: str) -> Version | None:
    """``containerd github.com/containerd/containerd v2.4.2 abc`` → (2, 4)."""
    match = re.search(r"\bv?(\d+)\.(\d+)\.\d+", text)
    return (int(match[1]), int(match[2])) if match else None


def _cdi_keys(section: Any) -> dict[str, Any]:
    keys = ("enable_cdi", "cdi_spec_dirs")
    return {key: section[key] for key in keys if isinstance(section, dict) and key in section}


# Reading ---------------------------------------------------------------------------------


def check(cdi_dir: Path, containerd_config: Path, crio_config: Path) -> list[Finding]:
    """Both runtimes, as far as there is a trace of them, and the folder itself."""
    findings = [check_folder(cdi_dir)]
    containerd = present(containerd_config) or CONTAINERD_SOCKET.is_socket()
    crio = present(crio_config)
    if containerd:
        findings += _guarded("containerd", lambda: _containerd(cdi_dir, containerd_config))
    if crio:
        findings += _guarded("CRI-O", lambda: _crio(cdi_dir, crio_config))
    if not (containerd or crio):
        findings.append(
            warn(
                "container runtime",
                f"neither {containerd_config} nor {crio_config} nor {CONTAINERD_SOCKET}",
                "the runtime's configuration, to see whether it reads CDI specs",
                "run this on the node itself, or name the files with --containerd-config or "
                "--crio-config",
            )
        )
    return findings


def check_folder(folder: Path) -> Finding:
    """Whether specs can be written there."""
    check, problem = "CDI folder", unwritable(folder)
    if problem:
        mend = (
            "run the plugin as root, mount the folder read-write into its container, or choose "
            "another --cdi-dir"
        )
        return fail(check, problem, "a folder that this user may write to", mend)
    return ok(check, told(folder))


def _guarded(runtime: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except (ConfigError, PermissionError) as error:
        mend = "mend the file, or run as root if it is closed to this user"
        return [fail(f"{runtime} configuration", str(error), "a readable TOML file", mend)]


def _containerd(cdi_dir: Path, config_file: Path) -> list[Finding]:
    config = containerd_cdi(_with_imports(config_file))
    on = judge_containerd(config, _installed_version(), config_file)
    if on.level == "fail":
        return [on]
    return [on, judge_dirs("containerd", config, cdi_dir, _resolved(cdi_dir, config))]


def _crio(cdi_dir: Path, folder: Path) -> list[Finding]:
    drop_ins = folder / "crio.conf.d"
    files = [folder / "crio.conf", *(sorted(drop_ins.iterdir()) if present(drop_ins) else ())]
    config = crio_cdi([_load(path) for path in files if path.is_file()])
    return [judge_dirs("CRI-O", config, cdi_dir, _resolved(cdi_dir, config))]


def _resolved(folder: Path, config: CdiConfig) -> dict[str, str]:
    """``/var/run`` is a link to ``/run`` on most nodes."""
    return {path: os.path.realpath(path) for path in (str(folder), *config.dirs)}


def _with_imports(path: Path) -> list[Mapping[str, Any]]:
    """The file, then what its ``imports`` name (globs, relative to it); none when missing."""
    if not present(path):
        return []
    config = _load(path)
    found = [config]
    for pattern in config.get("imports") or ():
        base = Path("/") if pattern.startswith("/") else path.parent
        found += [_load(each) for each in sorted(base.glob(pattern.lstrip("/")))]
    return found


def _load(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are the latter
        raise ConfigError(f"{path}: {error}") from error


def _installed_version() -> Version | None:
    program = shutil.which("containerd")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the node's own containerd
            [program, "--version"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return version_in(done.stdout)
