"""The container edits that NVIDIA's toolkit would make, where the node has it."""

import json
from pathlib import Path
from typing import Any

from driver.errors import HardwareError
from driver.hw.program import run_program

DEFAULT_TIMEOUT_S = 30.0

# What cdiVersion 0.5.0 knows; the toolkit adds newer fields (nvidia-container-toolkit#1860).
_FIELDS = ("env", "deviceNodes", "mounts", "hooks")
_MPS_FOLDER = "nvidia-mps"  # the host's own: it would collide with a claim's pipe directory


def ctk_edits(nvidia_ctk: Path, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, Any] | None:
    """The containerEdits that are common to all devices, as CDI 0.5.0, or None where the program
    does not exist.

    Raises HardwareError where the program cannot be run, fails, does not end within ``timeout_s``
    or prints something else.
    """
    if not nvidia_ctk.exists():
        return None
    call = f"{nvidia_ctk} cdi generate --format=json"
    document = _parse(call, _run(call, nvidia_ctk, timeout_s))
    edits = document.get("containerEdits") if isinstance(document, dict) else None
    if not isinstance(edits, dict):
        raise HardwareError(call, "printed JSON without containerEdits, a CDI spec was wanted")
    kept = {field: edits[field] for field in _FIELDS if edits.get(field)}
    if "mounts" in kept:
        kept["mounts"] = [mount for mount in kept["mounts"] if not _is_mps(call, mount)]
    return kept


def _is_mps(call: str, mount: object) -> bool:
    if not isinstance(mount, dict):
        raise HardwareError(call, f"printed the mount {mount!r}, an object was wanted")
    return Path(str(mount.get("hostPath", ""))).name == _MPS_FOLDER


def _run(call: str, nvidia_ctk: Path, timeout_s: float) -> str:
    printed = run_program([nvidia_ctk, "cdi", "generate", "--format=json"], timeout_s)
    if printed.status != 0:
        last = printed.complaint.strip().rpartition("\n")[2] or "no message"
        raise HardwareError(call, f"ended with status {printed.status}: {last}")
    return printed.output


def _parse(call: str, output: str) -> object:
    try:
        document: object = json.loads(output)
    except ValueError as error:
        raise HardwareError(call, f"printed no JSON: {error}") from error
    return document
