"""The container edits that NVIDIA's toolkit makes, where the node has it.

Its hooks run on the host when a container starts: they make the links that programs look for and
bring the container's loader cache up to date, which no list of files can.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from driver.errors import HardwareError
from driver.hw.folders import program_folders
from driver.hw.libraries import DriverFiles
from driver.hw.program import run_program

PROGRAM = "nvidia-ctk"
DEFAULT_TIMEOUT_S = 30.0

_HOOK = "nvidia-cdi-hook"  # a program of its own since toolkit 1.16
_AGAIN_S = 60.0  # after a failure: a claim must not wait for a program that hangs each time
# What cdiVersion 0.5.0 knows; the toolkit adds newer fields (nvidia-container-toolkit#1860).
_FIELDS = ("env", "deviceNodes", "mounts", "hooks")

_Stamp: TypeAlias = tuple[int, int, int] | None  # inode, size, modification time in ns; None: gone


class Toolkit:
    """``nvidia-ctk``, asked again when it or the driver's files have changed: a spec made while
    either is being installed must not stay (dra-driver-nvidia-gpu#1380). Any thread may call.

    ``root`` and ``host_root`` as for ``Cards``. ``program`` is where it lies apart from the driver
    (the GPU operator's is in /usr/local/nvidia/toolkit), the same here and on the host; None: a
    program folder of ``root``.
    """

    def __init__(
        self,
        root: Path,
        host_root: Path | None = None,
        program: Path | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._host_root = host_root or root
        self._program = program
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = Lock()
        self._key: tuple[DriverFiles, Path, _Stamp, _Stamp] | None = None
        self._found: dict[str, Any] | HardwareError = {}
        self._at = 0.0

    def edits(self, files: DriverFiles) -> Mapping[str, Any] | None:
        """The containerEdits that are common to all devices, as CDI 0.5.0 and with paths of the
        host: the same object until something changes. None where the node has no toolkit.

        Raises:
            HardwareError: the program cannot be run, fails, does not end in time, or prints
                something else than edits for the driver that ``files`` are of.
        """
        program = self._program or self._in_root()
        if program is None:
            return None
        key = (files, program, _stamp(program), _stamp(program.with_name(_HOOK)))
        with self._lock:
            failed = isinstance(self._found, HardwareError)
            if key != self._key or (failed and self._clock() - self._at >= _AGAIN_S):
                self._found = self._ask(program, files.driver_version)
                self._key, self._at = key, self._clock()
            if isinstance(self._found, HardwareError):
                raise self._found
            return self._found

    def _in_root(self) -> Path | None:
        found = (folder / PROGRAM for folder in program_folders(self._root))
        return next((path for path in found if path.exists()), None)

    def _ask(self, program: Path, driver_version: str) -> dict[str, Any] | HardwareError:
        try:
            return self._generated(program, driver_version)
        except HardwareError as error:
            return error

    def _generated(self, program: Path, driver_version: str) -> dict[str, Any]:
        """Mode ``management`` needs no NVML: one lost card would fail the others'."""
        hook = program.with_name(_HOOK)
        option, path = ("cdi-hook", hook) if hook.exists() else ("ctk", program)
        arguments = [
            "--mode=management",
            f"--driver-root={self._root}",
            f"--nvidia-{option}-path={self._on_host(str(path))}",
        ]
        found = ctk_edits(program, arguments, self._timeout_s)
        library = f"libcuda.so.{driver_version}"
        mounts = [self._moved(mount) for mount in found.get("mounts", ())]
        if not any(str(each.get("containerPath", "")).endswith(f"/{library}") for each in mounts):
            raise HardwareError(
                f"{program} cdi generate",
                f"printed no mount of {library}, though NVML reports driver {driver_version}; "
                "finish the driver's installation, or update the toolkit",
            )
        nodes = [self._moved(node) for node in found.get("deviceNodes", ())]
        return found | {"mounts": mounts} | ({"deviceNodes": nodes} if nodes else {})

    def _moved(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        if "hostPath" not in entry:
            return dict(entry)
        return {**entry, "hostPath": self._on_host(str(entry["hostPath"]))}

    def _on_host(self, path: str) -> str:
        """Of a path as it is seen from here."""
        below = f"{self._root}/".replace("//", "/")
        if not path.startswith(below):
            return path
        return str(self._host_root / path.removeprefix(below))


def ctk_edits(
    program: Path, arguments: list[str], timeout_s: float = DEFAULT_TIMEOUT_S
) -> dict[str, Any]:
    """What ``nvidia-ctk cdi generate`` prints as common to all devices, of the fields that CDI
    0.5.0 knows.

    Raises HardwareError where the program cannot be run, fails, does not end within ``timeout_s``
    or prints something else.
    """
    call = f"{program} cdi generate"
    command: list[str | Path] = [program, "cdi", "generate", "--format=json", *arguments]
    printed = run_program(command, timeout_s)
    if printed.status != 0:
        raise HardwareError(call, f"ended with status {printed.status}: {printed.last_words}")
    document = _parse(call, printed.output)
    edits = document.get("containerEdits") if isinstance(document, dict) else None
    if not isinstance(edits, dict):
        raise HardwareError(call, "printed JSON without containerEdits, a CDI spec was wanted")
    return {field: _objects(call, field, edits[field]) for field in _FIELDS if edits.get(field)}


def _objects(call: str, field: str, entries: object) -> list[Any]:
    """The rules for what is in them are ``cdi_rules``'."""
    want = str if field == "env" else dict
    if not isinstance(entries, list) or not all(isinstance(each, want) for each in entries):
        raise HardwareError(call, f"printed {field} {entries!r}, a list of {want.__name__} wanted")
    return entries


def _parse(call: str, output: str) -> object:
    try:
        document: object = json.loads(output)
    except ValueError as error:
        raise HardwareError(call, f"printed no JSON: {error}") from error
    return document


def _stamp(path: Path) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
