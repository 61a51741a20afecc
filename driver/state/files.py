"""Files that survive a crash, and say so when they did not."""

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driver.errors import ClaimError, StateError

STATE_SETTING = "--plugin-dir"  # the option that moves the driver's own records elsewhere

_SAFE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LITTER = re.compile(r"\..+\.tmp")  # what write_atomically leaves when the process dies

_HINTS = {
    errno.ENOSPC: "free space (or inodes) on that file system",
    errno.EDQUOT: "raise the quota or free space",
    errno.EROFS: "mount that file system read-write",
    errno.EACCES: "let the driver's user write there",
    errno.EPERM: "let the driver's user write there",
    errno.ENOENT: "restore the folder",
    errno.EIO: "check the disk",
}


def is_safe_name(name: str) -> bool:
    """Whether ``name`` can be part of a file name: 1 to 63 letters, digits and inner dashes.

    Every UID the API server makes fits (RFC 4122); a path separator, a dot or a control
    character never does.
    """
    return _SAFE_NAME.fullmatch(name) is not None


def safe_name(name: str) -> str:
    """Return ``name`` when ``is_safe_name`` holds.

    Raises:
        ClaimError: it does not; nothing was touched.
    """
    if not is_safe_name(name):
        raise ClaimError(
            f"{name!r} cannot name a claim: wanted 1 to 63 letters, digits and inner dashes, as "
            "in metadata.uid of a ResourceClaim"
        )
    return name


def write_atomically(
    path: Path,
    data: bytes,
    *,
    setting: str = STATE_SETTING,
    mode: int = 0o600,
    durable: bool = True,
    by_way_of: Path | None = None,
) -> None:
    """Replace ``path`` with ``data``: after a crash it holds the old or the new bytes.

    The bytes are written beside ``path``, or in the folder ``by_way_of`` of the same file system,
    and renamed. ``durable`` also makes it survive a power loss: the bytes reach the disk before
    the name, the name before this returns. ``setting`` is the option named in errors.

    Raises:
        StateError: ``path`` holds the old bytes and nothing else is left behind; only when the
            very last act fails (telling the disk of the new name) may it hold the new ones.
    """
    try:
        _replace(path, data, by_way_of or path.parent, mode=mode, durable=durable)
        if durable:
            _sync(path.parent)
    except OSError as error:
        raise _explain(path, "written", error, setting) from error


def _replace(path: Path, data: bytes, beside: Path, *, mode: int, durable: bool) -> None:
    temporary = f"{beside}/{litter_name(path.name)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(fd, mode)  # exact, whatever the umask
            _write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def litter_name(name: str) -> str:
    """A new name beside ``name`` of which ``remove_litter`` knows that nobody needs it."""
    return f".{name}.{os.urandom(6).hex()}.tmp"


def _write_all(fd: int, data: bytes) -> None:
    """A disk that fills up takes the first part and refuses the second."""
    while data:
        data = data[os.write(fd, data) :]


def remove(path: Path, *, setting: str = STATE_SETTING, durable: bool = True) -> None:
    """Delete ``path``; that it is gone already is fine.

    With ``durable`` the folder reaches the disk even then: an earlier call may have been stopped
    between the two.

    Raises:
        StateError: the file may still be there.
    """
    try:
        try:
            os.unlink(path)
        except OSError:  # on a read-only file system not ENOENT where there is nothing
            if os.path.lexists(path):
                raise
        if durable:
            _sync(path.parent)
    except OSError as error:
        raise _explain(path, "removed", error, setting) from error


def move_aside(path: Path, *, setting: str = STATE_SETTING) -> Path | None:
    """Take ``path`` away under a name that ``remove_litter`` knows; None: it was gone already.

    Raises:
        StateError: the file is still there.
    """
    aside = path.with_name(litter_name(path.name))
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _explain(path, "removed", error, setting) from error
    return aside


def make_folder(folder: Path, mode: int, *, setting: str = STATE_SETTING) -> None:
    """Create ``folder`` (and its parents) with ``mode`` unless it exists.

    Raises:
        StateError: it cannot be created.
    """
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)  # mkdir's own mode is cut by the umask
    except OSError as error:
        raise _explain(folder, "created", error, setting) from error


def list_folder(folder: Path, *, setting: str = STATE_SETTING) -> tuple[Path, ...]:
    """Everything in ``folder``, sorted by name; nothing when there is no such folder.

    Raises:
        StateError: it exists but cannot be read.
    """
    try:
        return tuple(sorted(folder.iterdir()))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _explain(folder, "listed", error, setting) from error


def remove_litter(folder: Path, prefix: str = "", *, setting: str = STATE_SETTING) -> None:
    """Delete temporary files of writes that a crash cut short, for names that begin with
    ``prefix``. What cannot be deleted does no harm and stays."""
    for path in list_folder(folder, setting=setting):
        if _LITTER.fullmatch(path.name) and path.name.startswith(f".{prefix}"):
            with contextlib.suppress(OSError):
                path.unlink()


def sync(path: Path, *, setting: str = STATE_SETTING) -> None:
    """Bring a file's bytes, or a folder's names, to the disk; that it is gone is fine.

    Raises:
        StateError: a power loss may undo them.
    """
    try:
        _sync(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _explain(path, "synced", error, setting) from error


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)  # of a folder: its names must reach the disk too
    finally:
        os.close(fd)


def _explain(path: Path, what: str, error: OSError, setting: str) -> StateError:
    code = errno.errorcode.get(error.errno or 0, "no errno")
    hint = _HINTS.get(error.errno or 0, "mend the cause")
    return StateError(
        f"{path} was not {what}: {error.strerror or error} ({code}); {hint}, or choose another "
        f"folder with {setting}"
    )


def encode(version: int, payload: Mapping[str, Any]) -> bytes:
    """One header line, then the payload as JSON. The digest covers the bytes as written.

    It must not cover a re-encoded object: then every new optional field makes old files look
    corrupt (dra-driver-nvidia-gpu issues 1080, 1119, 1326).
    """
    body = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return _header(version, body) + b"\n" + body


def decode(data: bytes, path: Path) -> tuple[int, dict[str, Any]]:
    """Return (version, payload) of what ``encode`` made; ``path`` only names it in errors.

    Raises:
        StateError: not a byte of ``data`` can be trusted.
    """
    if not data:
        raise StateError(f"{path} is empty; wanted a header line and a payload")
    head, _, body = data.partition(b"\n")
    try:
        version = int(json.loads(head)["version"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"{path} does not begin with a header line of this driver") from error
    if head != _header(version, body):
        raise StateError(f"{path} was changed or cut short after it was written")
    payload = json.loads(body)
    if not isinstance(payload, dict):
        raise StateError(f"{path} holds a {type(payload).__name__}; wanted an object")
    return version, payload


def _header(version: int, body: bytes) -> bytes:
    digest = hashlib.sha256(b"%d\n%b" % (version, body)).hexdigest()
    return json.dumps({"version": version, "sha256": digest}, separators=(",", ":")).encode()
