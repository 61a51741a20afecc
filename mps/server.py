"""The socket: one connection a call, one thread a connection."""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mps.protocol import (
    MpsError,
    as_data,
    check_gpu,
    line,
    message_of,
    namespace_of,
    spec_of,
)
from mps.supervisor import Supervisor

log = logging.getLogger(__name__)

LONGEST_PATH = 107  # bytes of a socket's path, unix(7)
MOST_CALLS = 256  # at once; a node has 16 cards with 48 shares, and a driver calls in turns
_LONGEST_WAIT_S = 60.0
_LARGEST_REQUEST = 1 << 16  # bytes
_READ_S = 10.0  # a client that says nothing must not hold a thread

_Call = Callable[[Supervisor, Mapping[str, Any]], Mapping[str, Any]]


def _changes(supervisor: Supervisor, given: Mapping[str, Any]) -> Mapping[str, Any]:
    wait_s = min(max(float(given["wait_s"]), 0.0), _LONGEST_WAIT_S)
    revision, cards = supervisor.changes(int(given["after"]), wait_s)
    return {"revision": revision, "cards": [as_data(one) for one in cards]}


def _stop(supervisor: Supervisor, given: Mapping[str, Any]) -> Mapping[str, Any]:
    supervisor.stop(check_gpu(given["gpu"]))
    return {}


def _ensure_namespace(supervisor: Supervisor, given: Mapping[str, Any]) -> Mapping[str, Any]:
    wanted = namespace_of(given["namespace"])
    return {"pipe_directory": supervisor.ensure_namespace(check_gpu(given["gpu"]), wanted)}


def _delete_namespace(supervisor: Supervisor, given: Mapping[str, Any]) -> Mapping[str, Any]:
    supervisor.delete_namespace(check_gpu(given["gpu"]), str(given["name"]))
    return {}


def _namespaces(supervisor: Supervisor, given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = supervisor.namespaces(check_gpu(given["gpu"]))
    return {"namespaces": [as_data(one) for one in found]}


_CALLS: Mapping[str, _Call] = {
    "info": lambda supervisor, _: as_data(supervisor.info()),
    "ensure": lambda supervisor, given: as_data(supervisor.ensure(spec_of(given))),
    "stop": _stop,
    "cards": lambda supervisor, _: {"cards": [as_data(one) for one in supervisor.cards()]},
    "ensure_namespace": _ensure_namespace,
    "delete_namespace": _delete_namespace,
    "namespaces": _namespaces,
    "changes": _changes,
}


def answer(supervisor: Supervisor, request: bytes) -> Mapping[str, Any]:
    """The answer to one line."""
    try:
        message = message_of(request)
        call = _CALLS[message["call"]]
        return {"result": call(supervisor, message["arguments"])}
    except MpsError as error:
        return _error("refused", str(error))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _error("refused", f"not a call that this supervisor knows: {error!r}")


def _error(kind: str, text: str) -> Mapping[str, Any]:
    return {"error": {"kind": kind, "text": text}}


class Server:
    """Listens until it is closed. What was begun goes on when its client has left."""

    def __init__(self, supervisor: Supervisor, path: Path) -> None:
        self._supervisor = supervisor
        self._path = path
        self._free = threading.BoundedSemaphore(MOST_CALLS)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def open(self) -> None:
        """The supervisor holds its lock, so a socket that lies there is nobody's.

        Raises:
            OSError: the path is too long, or its folder is missing or read-only.
        """
        length = len(os.fsencode(self._path))
        if length > LONGEST_PATH:
            raise OSError(
                f"socket {self._path} has {length} bytes, at most {LONGEST_PATH} are possible; "
                "give --socket or --run-dir a shorter path"
            )
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        before = os.umask(0o177)  # never open to others, not even for a moment
        try:
            self._socket.bind(str(self._path))
        finally:
            os.umask(before)
        self._socket.listen(MOST_CALLS)

    def serve(self) -> None:
        """Returns after ``close``."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._free.acquire(blocking=False):
                self._refuse(connection)
                continue
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Listen no longer; calls at hand are answered."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _refuse(self, connection: socket.socket) -> None:
        text = f"{MOST_CALLS} calls are at work already; try again"
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_READ_S)
            connection.sendall(line(_error("refused", text)))

    def _one(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_READ_S)
                request = _request(connection)
                if request:
                    connection.sendall(line(self._answer(request)))
        finally:
            self._free.release()

    def _answer(self, request: bytes) -> Mapping[str, Any]:
        try:
            return answer(self._supervisor, request)
        except Exception as error:
            log.exception("a call failed")
            return _error("refused", f"the supervisor failed: {error!r}; see its log")


def _request(connection: socket.socket) -> bytes:
    found = bytearray()
    while not found.endswith(b"\n") and len(found) < _LARGEST_REQUEST:
        piece = connection.recv(4096)
        if not piece:
            return b""
        found += piece
    return bytes(found)
