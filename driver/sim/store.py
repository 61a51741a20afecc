"""The state file of a simulated node, shared by all processes that use its root folder.

Readers need no lock: the file is replaced as a whole, and each new one gets a larger modification
time than the one before (the kernel's own stamps repeat within a tick), so a ``stat`` tells
whether a cached copy still holds. Writers hold an flock from reading to replacing.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from driver.errors import DriverError
from driver.sim.world import World, decode, encode

_Key = tuple[int, int, int]


class SimulationError(DriverError):
    """The simulated node is not there, not readable, or not the one that was asked for."""


class Store:
    """Access to ``<root>/sim/state.json``."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._path = str(self.root / "sim" / "state.json")
        self._lock = str(self.root / "sim" / "lock")
        self._cached: tuple[_Key, World] | None = None

    @property
    def exists(self) -> bool:
        """True when the node was created."""
        return os.path.exists(self._path)

    def read(self) -> World:
        """The state now. The value is shared: never change it.

        Raises:
            SimulationError: there is no readable state.
        """
        try:
            stat = os.stat(self._path)
        except OSError as error:
            raise unusable(self.root, error) from error
        cached = self._cached
        if cached is not None and cached[0] == (stat.st_mtime_ns, stat.st_ino, stat.st_size):
            return cached[1]
        key, world = self._load()
        self._cached = key, world
        return world

    @contextmanager
    def update(self) -> Iterator[World]:
        """A private copy to change; stored when the block ends without an exception.

        Raises:
            SimulationError: there is no readable state.
        """
        with self.locked():
            (mtime_ns, _, _), world = self._load()
            yield world
            self._write(world, mtime_ns)

    def begin(self, world: World) -> None:
        """Store the first state; the caller holds ``locked()``."""
        self._write(world, 0)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive among processes and threads (each entry opens the lock file anew)."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise unusable(self.root, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _load(self) -> tuple[_Key, World]:
        try:
            with open(self._path, "rb") as file:
                stat = os.fstat(file.fileno())
                raw = file.read()
        except OSError as error:
            raise unusable(self.root, error) from error
        try:
            world = decode(raw)
        except (ValueError, TypeError) as error:
            raise SimulationError(
                f"simulated hardware: {self._path} is not a state file ({error}); "
                f"delete the folder {self.root} to start anew"
            ) from error
        return (stat.st_mtime_ns, stat.st_ino, stat.st_size), world

    def _write(self, world: World, previous_ns: int) -> None:
        new = f"{self._path}.new"  # one writer at a time: the lock is held
        try:
            with open(new, "wb") as file:
                file.write(encode(world))
            stamp = max(time.time_ns(), previous_ns + 1)
            os.utime(new, ns=(stamp, stamp))
            os.replace(new, self._path)
        except OSError as error:
            raise unusable(self.root, error) from error


def unusable(root: Path, error: OSError) -> SimulationError:
    """Why the folder of a simulated node cannot be used, and the option that names another."""
    if isinstance(error, FileNotFoundError):
        return SimulationError(
            f"simulated hardware: no state under {root}; `aliquot node run --simulate … "
            f"--simulate-root {root}` makes one"
        )
    at = f" ({error.filename})" if error.filename else ""
    return refused(root, f"{error.strerror or error}{at}")


def refused(root: Path, why: str) -> SimulationError:
    return SimulationError(
        f"simulated hardware: {root} cannot be used: {why}; name a folder that this user may "
        "write to with --simulate-root (--root of `aliquot sim`)"
    )
