"""The journal: what is prepared on this node, one file a claim.

The truth about claims (design principle 3): replies, CDI files and metrics are made from it.
One process writes it; another one is kept out by a lock that is not this module's business.
"""

from collections.abc import Iterable
from pathlib import Path
from threading import Lock

from driver.errors import StateError
from driver.model.claims import ClaimState, Record
from driver.model.ids import ClaimUid, GpuUuid
from driver.plan.records import from_payload, to_payload
from driver.state import quarantine
from driver.state.files import (
    encode,
    is_safe_name,
    list_folder,
    make_folder,
    remove,
    remove_litter,
    safe_name,
    write_atomically,
)
from driver.state.later import Later
from driver.state.quarantine import Damaged

VERSION = 1  # of the envelope's payload; a new optional field does not change it

_SUFFIX = ".json"
_STRIPES = 64  # writes of different claims do not wait for each other's disk


class Journal:
    """Records in memory, each change on disk first. Safe to use from several threads.

    Reading never touches the disk. When ``put`` or ``remove`` raise, memory still holds the
    earlier record, and what they did survives the death of the process.

    For records with steps it survives a power loss too when they return. A record for which none
    are done (it has none, or they were done for the claims beside it, whose records last) is
    about nothing on the node but its pod, which a power loss ends: the kubelet prepares anew
    after a boot. Its fsync (a fifth of a prepare, a third of an unprepare) follows milliseconds
    later, and what a power loss takes or brings back in between is prepared anew, rebuilt from
    the claim, or released as an orphan.
    """

    def __init__(
        self, folder: Path, records: Iterable[Record] = (), damaged: Iterable[Damaged] = ()
    ) -> None:
        self._folder = folder
        self._later = Later(folder)
        self._damaged = tuple(damaged)
        self._records: dict[ClaimUid, Record] = {}
        self._by_gpu: dict[GpuUuid, dict[ClaimUid, Record]] = {}
        self._memory = Lock()  # held for moments only, never while the disk works
        self._stripes = tuple(Lock() for _ in range(_STRIPES))
        for record in records:
            self._remember(record)

    @classmethod
    def open(cls, folder: Path) -> "Journal":
        """Load ``folder``, created with mode 0700 when missing.

        A file that cannot be trusted is moved to ``<folder>/quarantine`` and reported by
        ``damaged``: it must not stop the start, and it must not count as "nothing prepared",
        because the kubelet does not prepare running pods again (dra-example-driver issue 249).

        Raises:
            StateError: the folder itself cannot be created or read.
        """
        make_folder(folder, 0o700)
        remove_litter(folder)
        records, damaged = _load(folder)
        known = {record.claim.uid for record in records}
        moved = {item.path for item in damaged}
        damaged += [
            item
            for item in quarantine.unsettled(folder)
            if item.path not in moved and item.uid not in known
        ]
        return cls(folder, records, damaged)

    @property
    def damaged(self) -> tuple[Damaged, ...]:
        """Files that could not be trusted and are not settled yet, earlier starts' included."""
        return self._damaged

    def get(self, uid: ClaimUid) -> Record | None:
        """The record of ``uid``, or None when nothing is prepared for it."""
        with self._memory:
            return self._records.get(uid)

    def all(self) -> tuple[Record, ...]:
        """Every record."""
        with self._memory:
            return tuple(self._records.values())

    def records_on(self, gpus: Iterable[GpuUuid]) -> tuple[Record, ...]:
        """The records that touch any of ``gpus``, each once; its cost is theirs alone."""
        with self._memory:
            found: dict[ClaimUid, Record] = {}
            for gpu in gpus:
                found |= self._by_gpu.get(gpu, {})
            return tuple(found.values())

    def put(self, record: Record) -> None:
        """Add ``record`` or replace the one of the same claim.

        Raises:
            StateError: the disk refused; see ``files.write_atomically``.
            ClaimError: the claim's UID cannot name a file.
        """
        path = self._path(record.claim.uid)
        with self._stripe(record.claim.uid):
            lasting = self._must_last(record)
            write_atomically(path, encode(VERSION, to_payload(record)), durable=lasting)
            if not lasting:
                self._later.sync(path)
            with self._memory:
                self._forget(record.claim.uid)
                self._remember(record)

    def remove(self, uid: ClaimUid) -> None:
        """Drop the record of ``uid``; that there is none is fine.

        The file is removed even when memory has no record: an earlier ``put`` that failed may
        have left one.

        Raises:
            StateError: the disk refused; see ``files.remove``.
            ClaimError: ``uid`` cannot name a file.
        """
        path = self._path(uid)
        with self._stripe(uid):
            known = self.get(uid)
            if known is None or known.steps:
                remove(path)
            else:
                self._later.discard(path)
            with self._memory:
                self._forget(uid)

    def flush(self) -> None:
        """Wait until the disk has all that was put and removed, or for 10 s; the log says which
        of it the disk did not take."""
        self._later.flush()

    def settle(self, uid: ClaimUid) -> None:
        """Stop reporting the damage of ``uid``: its record is rebuilt, or the claim is gone.

        Raises:
            StateError: see ``quarantine.settle``.
        """
        for item in self._damaged:
            if item.uid == uid:
                quarantine.settle(item)
        with self._memory:
            self._damaged = tuple(item for item in self._damaged if item.uid != uid)

    def _must_last(self, record: Record) -> bool:
        """Whether steps are done for it, not for others before: then it is STARTED first."""
        begun = record.state is ClaimState.STARTED or self.get(record.claim.uid) is not None
        return bool(record.steps) and begun

    def _path(self, uid: ClaimUid) -> Path:
        return self._folder / f"{safe_name(uid)}{_SUFFIX}"

    def _stripe(self, uid: ClaimUid) -> Lock:
        return self._stripes[hash(uid) % _STRIPES]

    def _remember(self, record: Record) -> None:
        self._records[record.claim.uid] = record
        for gpu in record.gpus:
            self._by_gpu.setdefault(gpu, {})[record.claim.uid] = record

    def _forget(self, uid: ClaimUid) -> None:
        record = self._records.pop(uid, None)
        for gpu in record.gpus if record else ():
            on_gpu = self._by_gpu[gpu]
            del on_gpu[uid]
            if not on_gpu:
                del self._by_gpu[gpu]


def _load(folder: Path) -> tuple[list[Record], list[Damaged]]:
    records: list[Record] = []
    damaged: list[Damaged] = []
    for path in list_folder(folder):
        if path.suffix != _SUFFIX:
            continue  # the quarantine itself, a lock file: not records
        try:
            records.append(_read(path))
        except (StateError, FileNotFoundError) as error:
            uid = ClaimUid(path.stem) if is_safe_name(path.stem) else None
            damaged.append(quarantine.set_aside(path, str(error), uid))
    return records, damaged


def _read(path: Path) -> Record:
    record = from_payload(quarantine.read_envelope(path, VERSION))
    if record.claim.uid != path.stem:
        raise StateError(f"{path} holds the record of claim {record.claim.uid}")
    return record
