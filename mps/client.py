"""The driver's side of the supervisor's socket: blocking, one connection a call, any thread."""

import contextlib
import errno
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mps.protocol import (
    LARGEST_LINE,
    CardSpec,
    CardState,
    MpsRefusedError,
    MpsUnreachableError,
    Namespace,
    SupervisorInfo,
    as_data,
    check_gpu,
    info_of,
    line,
    message_of,
    namespace_of,
    state_of,
)

_LOOK = (
    "look at the MPS supervisor on this node (`aliquot mps serve`, DaemonSet aliquot-mps); its "
    "socket is set with --mps-socket here and --socket there"
)
_HINTS = {
    errno.ENOENT: "there is no such socket",
    errno.ECONNREFUSED: "nobody listens there",
    errno.EACCES: "permission is denied, the socket is root's",
}


class MpsClient:
    """Calls to the supervisor. Each raises MpsUnreachableError or MpsRefusedError.

    ``timeout_s`` bounds the wait for an answer, not the work: the supervisor finishes what it
    began, and the same call again waits for it.
    """

    def __init__(self, socket: Path, timeout_s: float = 20.0) -> None:
        self._socket = socket
        self._timeout_s = timeout_s

    def info(self) -> SupervisorInfo:
        """The supervisor and what its control program can do."""
        return info_of(self._call("info", {}))

    def ensure(self, spec: CardSpec) -> CardState:
        """The card's control daemon runs with these defaults when this returns."""
        return state_of(self._call("ensure", as_data(spec)))

    def stop(self, gpu: str) -> None:
        """No control daemon of the card is left, and nothing that it left behind."""
        self._call("stop", {"gpu": check_gpu(gpu)})

    def cards(self) -> tuple[CardState, ...]:
        """Every card that has to be served, sorted by UUID."""
        return tuple(map(state_of, self._call("cards", {})["cards"]))

    def ensure_namespace(
        self, gpu: str, name: str, memory_limit: int | None, compute_percent: int | None
    ) -> Path:
        """The namespace exists with these limits; returns the directory its clients mount."""
        wanted = Namespace(name, memory_limit, compute_percent)
        arguments = {"gpu": check_gpu(gpu), "namespace": as_data(wanted)}
        return Path(self._call("ensure_namespace", arguments)["pipe_directory"])

    def delete_namespace(self, gpu: str, name: str) -> None:
        """The namespace is gone, its clients too."""
        self._call("delete_namespace", {"gpu": check_gpu(gpu), "name": name})

    def namespaces(self, gpu: str) -> tuple[Namespace, ...]:
        """Those of the card, sorted by name; none for a card that is not served."""
        found = self._call("namespaces", {"gpu": check_gpu(gpu)})["namespaces"]
        return tuple(map(namespace_of, found))

    def changes(self, after: int, wait_s: float) -> tuple[int, tuple[CardState, ...]]:
        """The revision and all cards, as soon as the revision is not ``after`` (0: at once), at
        the latest after ``wait_s``. A card that was stopped is no longer among them."""
        found = self._call("changes", {"after": after, "wait_s": wait_s}, wait_s)
        return found["revision"], tuple(map(state_of, found["cards"]))

    def _call(self, name: str, arguments: Mapping[str, Any], more_s: float = 0.0) -> Any:
        data = self._exchange(line({"call": name, "arguments": arguments}), more_s)
        try:
            answer = message_of(data)
            if "result" in answer:
                return answer["result"]
            raise MpsRefusedError(answer["error"]["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise MpsUnreachableError(
                f"{self._socket} answered {name} with {data[:80]!r}, which is not a supervisor's "
                f"answer; {_LOOK}"
            ) from error

    def _exchange(self, request: bytes, more_s: float) -> bytes:
        limit_s = self._timeout_s + more_s
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(limit_s)
                connection.connect(str(self._socket))
                with contextlib.suppress(BrokenPipeError):  # refused unread: the answer says why
                    connection.sendall(request)
                return _read_line(connection)
        except TimeoutError as error:
            raise MpsUnreachableError(
                f"no answer at {self._socket} within {limit_s:g} s; the work goes on there, the "
                f"next try finds what it came to; if it stays so, {_LOOK}"
            ) from error
        except OSError as error:
            why = _HINTS.get(error.errno or 0, error.strerror or str(error))
            raise MpsUnreachableError(f"no answer at {self._socket}: {why}; {_LOOK}") from error


def _read_line(connection: socket.socket) -> bytes:
    found = bytearray()
    while not found.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece or len(found) > LARGEST_LINE:
            break
        found += piece
    return bytes(found)
