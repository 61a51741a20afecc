"""What the supervisor must remember: which cards it serves, with which daemons."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mps import files
from mps.files import DamagedError
from mps.proc import Process
from mps.protocol import CardSpec, MpsRefusedError, Namespace, as_data, namespace_of, spec_of


@dataclass(frozen=True, slots=True)
class Record:
    """One card. It is written before a daemon is started and removed after its last trace."""

    spec: CardSpec
    boot: str  # during which it was written
    daemon: Process | None = None
    namespaces: Mapping[str, Namespace] | None = None  # None: lost, the daemon knows them
    stopping: bool = False
    restarts: int = 0

    @property
    def claims(self) -> Mapping[str, Namespace]:
        return self.namespaces or {}

    def with_namespace(self, wanted: Namespace) -> "Record":
        return replace(self, namespaces={**self.claims, wanted.name: wanted})

    def without_namespace(self, name: str) -> "Record":
        kept = {key: one for key, one in self.claims.items() if key != name}
        return replace(self, namespaces=kept)


class Store:
    """One file a card, named by the card's id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> tuple[dict[str, Record], tuple[str, ...]]:
        """All records by id, and a text for each file that was damaged and set aside.

        Raises:
            OSError: the folder cannot be made or read.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        found: dict[str, Record] = {}
        problems = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                found[path.stem] = _record(files.read(path))
            except DamagedError as error:
                problems.append(f"{path}: {error}; it is kept as {files.set_aside(path)}")
        return found, tuple(problems)

    def put(self, card: str, record: Record) -> None:
        """Raises OSError; the old record is still there then."""
        files.write(self._path(card), _data(record))

    def remove(self, card: str) -> None:
        """Raises OSError."""
        files.remove(self._path(card))

    def _path(self, card: str) -> Path:
        return self._folder / f"{card}.json"


def _data(record: Record) -> dict[str, Any]:
    daemon = record.daemon
    return {
        "spec": as_data(record.spec),
        "boot": record.boot,
        "daemon": None if daemon is None else [daemon.pid, daemon.start],
        "namespaces": None if record.namespaces is None else _listed(record.claims),
        "stopping": record.stopping,
        "restarts": record.restarts,
    }


def _listed(claims: Mapping[str, Namespace]) -> list[dict[str, Any]]:
    return [as_data(one) for one in claims.values()]


def _record(data: Mapping[str, Any]) -> Record:
    try:
        daemon = data["daemon"]
        listed = data["namespaces"]
        claims = None if listed is None else [namespace_of(one) for one in listed]
        return Record(
            spec=spec_of(data["spec"]),
            boot=data["boot"],
            daemon=None if daemon is None else Process(*daemon),
            namespaces=None if claims is None else {one.name: one for one in claims},
            stopping=data["stopping"],
            restarts=data["restarts"],
        )
    except (KeyError, TypeError, MpsRefusedError) as error:
        raise DamagedError(f"it lacks or mistakes {error}") from error
