"""All cards of a node: one lane each, what is said of them, and who is allowed to do it."""

import contextlib
import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from mps import layout, proc
from mps.abilities import Explorer
from mps.cgroups import Cgroups
from mps.daemon import Daemon, Host, spec_from
from mps.frontend import ControlError, Program
from mps.keeper import Keeper
from mps.lane import Lane
from mps.layout import CardPaths, card_paths
from mps.node import Node
from mps.protocol import CardSpec, CardState, Namespace, SupervisorInfo
from mps.settings import Settings
from mps.state import Record, Store

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_CARD_FOLDER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{8}")
_TAKE_OVER_S = 15.0  # callers wait so long for the state that an earlier supervisor left
_CLOSE_S = 5.0


class Changes:
    """A revision that moves with every change; never one that an earlier supervisor gave out."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._revision = time.time_ns() // 1_000_000

    def move(self) -> None:
        with self._moved:
            self._revision += 1
            self._moved.notify_all()

    def wait(self, after: int, wait_s: float) -> int:
        """The revision, once it is not ``after`` or the time is over."""
        with self._moved:
            self._moved.wait_for(lambda: self._revision != after, wait_s)
            return self._revision


class Supervisor:
    """Any thread may call it. Only one at a time for a run directory and a state directory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started = time.time()
        self._locks: list[int] = []
        self._lanes: dict[str, Lane] = {}
        self._guard = threading.Lock()
        self._changes = Changes()
        self._exploring = threading.Thread(target=self.info, name="explore", daemon=True)
        program = Program(settings.program, settings.driver_root)
        host = Host(
            program,
            Cgroups.below(settings.cgroup_root),
            settings.private_shm,
            settings.start_timeout_s,
            settings.probe_timeout_s,
        )
        probe = CardPaths(settings.run_dir / layout.PROBE)
        self._node = Node(
            host=host,
            store=Store(settings.state_dir),
            explorer=Explorer(host, probe),
            boot=proc.boot_id(),
            probe_interval_s=settings.probe_interval_s,
            settle_s=settings.settle_s,
            quit_timeout_s=settings.quit_timeout_s,
            changed=self._changes.move,
        )

    def open(self) -> None:
        """Take the place of an earlier supervisor, with all that it left.

        Raises:
            OSError: a directory is missing or read-only, or another supervisor is at work.
        """
        with _named("--state-dir"):
            self._settings.state_dir.mkdir(parents=True, exist_ok=True)
        with _named("--run-dir"):
            layout.make_run_dir(self._settings.run_dir)
        for folder in (self._settings.run_dir, self._settings.state_dir):
            self._locks.append(_lock(folder / "supervisor.lock"))
        self._end_trials()
        records, problems = self._node.store.open()
        for problem in problems:
            log.error("state file %s", problem)
        for folder in self._unknown_folders(records):
            if (record := self._orphan(CardPaths(folder))) is not None:
                records[folder.name] = record
        for record in records.values():
            self._lane(record.spec.gpu, record)
        self._exploring.start()

    def _end_trials(self) -> None:
        try:
            self._node.explorer.clear()
        except (ControlError, OSError) as error:
            log.warning("left by an earlier supervisor: %s", error)

    def _unknown_folders(self, records: dict[str, Record]) -> list[Path]:
        return [
            path
            for path in sorted(self._settings.run_dir.iterdir())
            if _CARD_FOLDER.fullmatch(path.name) and path.name not in records
        ]

    def _orphan(self, paths: CardPaths) -> Record | None:
        """A card without a state file: its daemon tells what it serves; without one it is rest."""
        daemon = Daemon(self._node.host, paths)
        for process in daemon.daemons():
            if (spec := spec_from(process)) is not None:
                log.error("%s: no state file, but daemon %d; it goes on", spec.gpu, process.pid)
                return Record(spec, self._node.boot, process)
        try:
            daemon.end(None)
            layout.remove_folders(paths)
            self._node.host.cgroups.remove(paths.group)
        except (ControlError, OSError) as error:
            log.error("%s is left as it is: %s", paths.folder, error)
        return None

    def close(self) -> None:
        """Stop looking after the cards; their daemons go on."""
        with self._guard:
            lanes = tuple(self._lanes.values())
        for lane in lanes:
            lane.close(_CLOSE_S)
        self._exploring.join(_CLOSE_S)
        while self._locks:
            os.close(self._locks.pop())

    # calls

    def info(self) -> SupervisorInfo:
        found = self._node.explorer.abilities()
        return SupervisorInfo(
            pid=os.getpid(),
            started=self._started,
            program=str(self._node.host.program.file),
            version=found.version,
            protocols=tuple(sorted(found.options)),
            multi_user=found.multi_user,
            failure=found.failure,
        )

    def ensure(self, spec: CardSpec) -> CardState:
        """Raises MpsRefusedError, as every call."""
        return self._do(spec.gpu, lambda keeper, now: keeper.ensure(spec, now))

    def stop(self, gpu: str) -> None:
        self._do(gpu, lambda keeper, now: keeper.stop(now))

    def ensure_namespace(self, gpu: str, wanted: Namespace) -> str:
        return self._do(gpu, lambda keeper, now: keeper.ensure_namespace(wanted, now))

    def delete_namespace(self, gpu: str, name: str) -> None:
        self._do(gpu, lambda keeper, _: keeper.delete_namespace(name))

    def namespaces(self, gpu: str) -> tuple[Namespace, ...]:
        def sorted_claims(keeper: Keeper, _: float) -> tuple[Namespace, ...]:
            claims = {} if keeper.record is None else keeper.record.claims
            return tuple(claims[name] for name in sorted(claims))

        return self._do(gpu, sorted_claims)

    def cards(self) -> tuple[CardState, ...]:
        """Waits until the state of all is known after a start."""
        end = time.monotonic() + _TAKE_OVER_S
        with self._guard:
            lanes = tuple(self._lanes.values())
        for lane in lanes:
            lane.taken_over.wait(max(0.0, end - time.monotonic()))
        states = (lane.keeper.state for lane in lanes)
        return tuple(sorted((one for one in states if one), key=lambda one: one.spec.gpu))

    def changes(self, after: int, wait_s: float) -> tuple[int, tuple[CardState, ...]]:
        revision = self._changes.wait(after, wait_s)
        return revision, self.cards()

    def _do(self, gpu: str, work: Callable[[Keeper, float], _T]) -> _T:
        with self._guard:
            done = self._lane_of(gpu, None).submit(work)
        return done.result()

    def _lane(self, gpu: str, record: Record) -> None:
        with self._guard:
            self._lane_of(gpu, record)

    def _lane_of(self, gpu: str, record: Record | None) -> Lane:
        lane = self._lanes.get(gpu)
        if lane is None:
            paths = card_paths(self._settings.run_dir, gpu)
            lane = Lane(paths.id, Keeper(paths, self._node, record), self._retire)
            self._lanes[gpu] = lane
            lane.start()
        return lane

    def _retire(self, lane: Lane) -> bool:
        with self._guard:
            if not lane.idle:
                return False
            self._lanes = {gpu: one for gpu, one in self._lanes.items() if one is not lane}
            return True


@contextlib.contextmanager
def _named(option: str) -> Iterator[None]:
    """Which setting a folder is that cannot be made."""
    try:
        yield
    except OSError as error:
        text = f"the folder of {option} cannot be made: {error.strerror or error}"
        raise OSError(error.errno, text, error.filename) from error


def _lock(path: Path) -> int:
    """Raises OSError; the kernel frees it with the process, however that ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise BlockingIOError(
            error.errno,
            f"another supervisor (process {holder}) holds {path}; end it first, or give this one "
            "a --run-dir and a --state-dir of its own",
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
