"""What cannot be trusted is set aside, kept for a person to look at, and reported."""

import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver.errors import StateError
from driver.model.ids import ClaimUid
from driver.state.files import decode, is_safe_name, list_folder

FOLDER = "quarantine"  # below the folder that the file was found in

_SET_ASIDE = re.compile(r"(?P<uid>.+)\.json\.\d+")
_SETTLED = ".settled"


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file of ours that cannot be trusted."""

    uid: ClaimUid | None  # from the file's name; None when the name is not a claim's
    path: Path  # where it lies now
    problem: str


def read_envelope(path: Path, version: int) -> dict[str, Any]:
    """The payload of a file that ``files.encode`` made with ``version``.

    Raises:
        FileNotFoundError: there is no such file.
        StateError: it exists but cannot be trusted.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a pipe would wait for ever
            raise StateError(f"{path} is not a regular file")
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror or error}") from error
    found, payload = decode(data, path)
    if found != version:
        raise StateError(
            f"{path} has format version {found}, this driver reads version {version}; run the "
            "driver version that wrote it"
        )
    return payload


def set_aside(path: Path, problem: str, uid: ClaimUid | None = None) -> Damaged:
    """Move ``path`` to ``quarantine/<name>.<n>`` beside it, n counting up from 1.

    Never raises: where the move is refused the file stays, and the problem says so.
    """
    folder = path.parent / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        target = _free_name(folder, path.name)
        os.rename(path, target)
    except OSError as error:
        reason = error.strerror or str(error)
        return Damaged(uid, path, f"{problem}; it was not moved to {folder}: {reason}")
    return Damaged(uid, target, problem)


def _free_name(folder: Path, name: str) -> Path:
    """The next number after all that were given out, so that settled ones are never hidden."""
    targets = (folder / f"{name}.{n}" for n in itertools.count(1))
    return next(
        target
        for target in targets
        if not os.path.lexists(target) and not os.path.lexists(f"{target}{_SETTLED}")
    )


def unsettled(folder: Path) -> Iterator[Damaged]:
    """Claims' files that were set aside below ``folder`` and not dealt with since: an earlier
    process may have been stopped before the claim could be looked up."""
    for path in list_folder(folder / FOLDER):
        match = _SET_ASIDE.fullmatch(path.name)
        if match and is_safe_name(match["uid"]):
            yield Damaged(ClaimUid(match["uid"]), path, f"{path} was set aside earlier")


def settle(damaged: Damaged) -> None:
    """Mark what was set aside as dealt with; it is kept, but not reported any more.

    A file that could not be moved is left alone: by now its place may hold a good record.

    Raises:
        StateError: it cannot be renamed, so it will be reported again at the next start.
    """
    if damaged.path.parent.name != FOLDER:
        return
    try:
        os.rename(damaged.path, f"{damaged.path}{_SETTLED}")
    except FileNotFoundError:
        return  # somebody took it away, which settles it too
    except OSError as error:
        raise StateError(
            f"{damaged.path} cannot be marked as dealt with: {error.strerror or error}; rename "
            f"or remove it by hand"
        ) from error
