"""State files that survive a crash and say so when they did not."""

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

VERSION = 1
QUARANTINE = "quarantine"


class DamagedError(Exception):
    """A state file cannot be trusted; the text says why."""


def write(path: Path, payload: Mapping[str, Any]) -> None:
    """Replace ``path``: after a crash or a power loss it is the old or the new one, whole.

    Raises:
        OSError: the old one is still there.
    """
    body = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    temporary = path.parent / f".{path.name}.tmp"  # one writer: a rest of a crash is replaced
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        data = _header(body) + b"\n" + body
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A new name reaches the disk with its folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Delete ``path`` if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    sync_folder(path.parent)


def read(path: Path) -> dict[str, Any]:
    """What ``write`` wrote.

    Raises:
        DamagedError: not a byte of it can be trusted, or another version wrote it.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # a pipe would be waited for
            raise DamagedError("it is no regular file")
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise DamagedError(f"it cannot be read: {error.strerror or error}") from error
    if head != _header(body):
        raise DamagedError(_why(head))
    payload: dict[str, Any] = json.loads(body)
    return payload


def _header(body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return json.dumps({"version": VERSION, "sha256": digest}, separators=(",", ":")).encode()


def _why(head: bytes) -> str:
    if not head:
        return "it is empty"
    with contextlib.suppress(ValueError, TypeError, KeyError):
        if json.loads(head)["version"] != VERSION:
            return f"it has another version than {VERSION}; an older supervisor cannot read it"
    return "it was changed or cut short after it was written"


def set_aside(path: Path) -> Path:
    """Move a damaged file to ``quarantine/<name>.<n>`` beside it; returns where it is now."""
    folder = path.parent / QUARANTINE
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        target = next(t for n in count(1) if not os.path.lexists(t := folder / f"{path.name}.{n}"))
        path.rename(target)
    except OSError:
        return path
    return target
