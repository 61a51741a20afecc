"""The journal as it lies on disk, for commands that must not change anything.

``Journal.open`` is the driver's: it makes the folder, moves damaged files and removes litter.
"""

import fcntl
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from driver.errors import StateError
from driver.model.claims import Record
from driver.plan.cdi import spec_file_name
from driver.plan.records import from_payload
from driver.state import quarantine
from driver.state.files import list_folder
from driver.state.journal import VERSION


@dataclass(frozen=True, slots=True)
class Entry:
    """A claim's record and its projection."""

    record: Record
    since: datetime  # when the record was last written
    cdi_file: Path
    cdi_present: bool


@dataclass(frozen=True, slots=True)
class Untrusted:
    """A file that holds no record that can be trusted."""

    path: Path
    problem: str


@dataclass(frozen=True, slots=True)
class Held:
    entries: tuple[Entry, ...]  # by the claim's namespace and name
    damaged: tuple[Untrusted, ...]


def read(journal: Path, cdi_dir: Path, driver: str) -> Held:
    """Every record below ``journal``; nothing when there is no such folder.

    Raises:
        StateError: the folder cannot be read.
    """
    entries: list[Entry] = []
    damaged: list[Untrusted] = []
    for path in list_folder(journal, setting="--plugin-dir"):
        if path.suffix != ".json":
            continue
        try:
            entries.append(_entry(path, cdi_dir, driver))
        except FileNotFoundError:
            continue  # unprepared meanwhile
        except StateError as error:
            damaged.append(Untrusted(path, str(error)))
    damaged += [Untrusted(one.path, one.problem) for one in quarantine.unsettled(journal)]
    entries.sort(key=lambda entry: (entry.record.claim.namespace, entry.record.claim.name))
    return Held(tuple(entries), tuple(damaged))


def lock_holder(lock: Path) -> str | None:
    """Who holds an instance lock: ``"pid 42"``, ``"a process"``, or None when nobody does.

    A shared lock is tried for a moment; the file is opened for reading and never created.

    Raises:
        OSError: the file cannot be opened, a missing one aside.
    """
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(os.fstat(fd))
    finally:
        os.close(fd)
    return None


def _entry(path: Path, cdi_dir: Path, driver: str) -> Entry:
    record = from_payload(quarantine.read_envelope(path, VERSION))
    if record.claim.uid != path.stem:
        raise StateError(f"{path} holds the record of claim {record.claim.uid}")
    since = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    cdi_file = cdi_dir / spec_file_name(driver, record.claim.uid)
    return Entry(record, since, cdi_file, cdi_file.is_file())


def _owner(stat: os.stat_result) -> str:
    """From ``/proc/locks``: ``1: FLOCK ADVISORY WRITE 42 08:01:1234 0 EOF`` (proc(5))."""
    name = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return "a process"
    return next(
        (f"pid {row[4]}" for row in rows if row[1:2] == ["FLOCK"] and row[5:6] == [name]),
        "a process",
    )
