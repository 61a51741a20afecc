"""The container edits that NVIDIA's toolkit makes, where the node has it.

Its hooks run on the host when a container starts: they make the links that programs look for and
bring the container's loader cache up to date, which no list of files can.
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from api.reading import show
from driver.errors import ClaimError, HardwareError
from driver.hw.folders import inside, program_folders
from driver.hw.libraries import DriverFiles
from driver.hw.program import Printed, run_program
from driver.plan.cdi import CDI_VERSION
from driver.plan.cdi_rules import validate_spec

PROGRAM = "nvidia-ctk"
DEFAULT_TIMEOUT_S = 10.0  # it takes some 20 ms: it loads no NVML in this mode

_HOOK = "nvidia-cdi-hook"  # a program of its own since toolkit 1.16
_AGAIN_S = 300.0  # after a failure: claims must not wait for a program that hangs each time
# What cdiVersion 0.5.0 knows; the toolkit adds newer fields (nvidia-container-toolkit#1860).
_FIELDS = ("env", "deviceNodes", "mounts", "hooks")
_LINE = re.compile(r'\bmsg="((?:[^"\\]|\\.)*)"')  # of its log, whose lines begin with the time

_Stamp: TypeAlias = tuple[int, int, int, int] | None  # None: not there


@dataclass(frozen=True, slots=True)
class _Program:
    """``nvidia-ctk`` as it is run here, and the path of what its hooks run on the host."""

    path: Path
    hook: str
    has_hook_program: bool


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
        self._root = root.resolve()
        self._host_root = host_root or self._root
        self._program = program
        self._timeout_s = timeout_s
        self._clock = clock
        self._folders: tuple[DriverFiles | None, tuple[Path, ...]] = (None, ())
        self._lock = Lock()
        self._key: tuple[DriverFiles, _Program, _Stamp] | None = None
        self._found: dict[str, Any] | HardwareError = {}
        self._at = 0.0

    def edits(self, files: DriverFiles) -> Mapping[str, Any] | None:
        """The containerEdits that are common to all devices, of the fields that CDI 0.5.0 knows
        and with paths of the host: the same object until something changes. None where the node
        has no toolkit.

        Raises:
            HardwareError: the program cannot be run, fails, does not end in time, or prints
                something else than sound edits for the driver that ``files`` are of.
        """
        program = self._apart(self._program) if self._program else self._in_root(files)
        if program is None:
            return None
        key = (files, program, _stamp(program.path))
        with self._lock:
            failed = isinstance(self._found, HardwareError)
            if key != self._key or (failed and self._clock() - self._at >= _AGAIN_S):
                self._found = self._ask(program, files.driver_version)
                self._key, self._at = key, self._clock()
            if isinstance(self._found, HardwareError):
                raise self._found
            return self._found

    @staticmethod
    def _apart(path: Path) -> _Program:
        hook = path.with_name(_HOOK)
        there = hook.exists()
        return _Program(path, str(hook if there else path), there)

    def _in_root(self, files: DriverFiles) -> _Program | None:
        """Links are followed as the host follows them. Folders that come or go make ``files``
        another object; resolving them takes longer than all else where there is no toolkit."""
        known, folders = self._folders
        if known is not files:
            folders = program_folders(self._root)
            self._folders = files, folders
        for folder in folders:
            if not os.path.lexists(f"{folder}/{PROGRAM}"):
                continue
            name = f"/{folder.relative_to(self._root)}"
            path = inside(self._root, f"{name}/{PROGRAM}")
            if path.is_file():
                there = inside(self._root, f"{name}/{_HOOK}").is_file()
                host = self._host_root / name[1:]
                return _Program(path, str(host / (_HOOK if there else PROGRAM)), there)
        return None

    def _ask(self, program: _Program, driver_version: str) -> dict[str, Any] | HardwareError:
        try:
            return self._generated(program, driver_version)
        except HardwareError as error:
            return error

    def _generated(self, program: _Program, driver_version: str) -> dict[str, Any]:
        """Mode ``management`` needs no NVML: one lost card would fail the others'."""
        found = ctk_edits(
            program.path,
            "--mode=management",
            f"--driver-root={self._root}",
            f"--nvidia-{'cdi-hook' if program.has_hook_program else 'ctk'}-path={program.hook}",
            timeout_s=self._timeout_s,
        )
        library = f"libcuda.so.{driver_version}"
        mounts = [self._moved(mount) for mount in found.get("mounts", ())]
        if not any(str(each.get("containerPath", "")).endswith(f"/{library}") for each in mounts):
            raise HardwareError(
                f"{program.path} cdi generate",
                f"printed no mount of {library}, though NVML reports driver {driver_version}; "
                "finish the driver's installation, or update the toolkit",
            )
        nodes = [self._moved(node) for node in found.get("deviceNodes", ())]
        edits = found | {"mounts": mounts} | ({"deviceNodes": nodes} if nodes else {})
        _check(f"{program.path} cdi generate", edits)
        return edits

    def _moved(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """With the path that the host has for what is seen below the driver root here."""
        path, below = str(entry.get("hostPath", "")), f"{self._root}/".replace("//", "/")
        if not path.startswith(below):
            return dict(entry)
        return {**entry, "hostPath": str(self._host_root / path.removeprefix(below))}


def ctk_edits(program: Path, *arguments: str, timeout_s: float) -> dict[str, Any]:
    """What ``nvidia-ctk cdi generate`` prints as common to all devices.

    Raises HardwareError where the program cannot be run, fails, does not end within ``timeout_s``
    or prints something else.
    """
    call = f"{program} cdi generate"
    command: list[str | Path] = [program, "cdi", "generate", "--format=json", *arguments]
    printed = run_program(command, timeout_s)
    if printed.status != 0:
        raise HardwareError(call, f"ended with status {printed.status}: {_reason(printed)}")
    document = _parse(call, printed.output)
    edits = document.get("containerEdits") if isinstance(document, dict) else None
    if not isinstance(edits, dict):
        raise HardwareError(call, "printed JSON without containerEdits, a CDI spec was wanted")
    return {field: _entries(call, field, edits[field]) for field in _FIELDS if edits.get(field)}


def _check(call: str, edits: Mapping[str, Any]) -> None:
    """Now: in a claim's spec they would be that claim's fault, and every claim's."""
    device = {"name": "any", "containerEdits": {"env": ["A=b"]}}
    spec = {"cdiVersion": CDI_VERSION, "kind": "any/any", "devices": [device]}
    try:
        validate_spec({**spec, "containerEdits": edits})
    except (ClaimError, RecursionError) as error:
        raise HardwareError(call, f"printed what cannot be used: {error}") from error


def _reason(printed: Printed) -> str:
    found = _LINE.search(printed.last_words)
    return found[1] if found else printed.last_words


def _entries(call: str, field: str, entries: object) -> list[Any]:
    want = str if field == "env" else dict
    if not isinstance(entries, list) or not all(isinstance(each, want) for each in entries):
        raise HardwareError(
            call, f"printed {field} {show(entries)}, a list of {want.__name__} was wanted"
        )
    return entries


def _parse(call: str, output: str) -> object:
    try:
        document: object = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise HardwareError(call, f"printed no JSON: {error}") from error
    return document


def _stamp(path: Path) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
