"""Requests to an API server, one connection a thread: HTTPS into a cluster's network namespace,
or HTTP over the Unix socket of a ``kubectl proxy``, which knows every kind of kubeconfig.
"""

import http.client
import json
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from e2e.cluster.errors import KubeError
from e2e.cluster.netns import NetNamespace
from e2e.cluster.pki import KeyPair


class _InsideConnection(http.client.HTTPSConnection):
    """Makes its socket in the namespace; the socket stays there, the thread comes back."""

    def __init__(self, host: str, context: ssl.SSLContext, netns: NetNamespace) -> None:
        super().__init__(host, 443, context=context, timeout=30)
        self._netns = netns

    def connect(self) -> None:
        with self._netns.entered():
            super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@dataclass(frozen=True)
class Reply:
    """Status and body of an answer."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as an object. Raises KubeError if the status says error."""
        if self.status >= 400:
            raise _error(self)
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    def text(self) -> str:
        """The body as text. Raises KubeError if the status says error."""
        if self.status >= 400:
            raise _error(self)
        return self.body.decode(errors="replace")


def _error(reply: Reply) -> KubeError:
    try:
        status = json.loads(reply.body)
        return KubeError(reply.status, str(status.get("reason")), str(status.get("message")))
    except ValueError:
        text = reply.body.decode(errors="replace")
        return KubeError(reply.status, http.client.responses.get(reply.status, ""), text)


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def inside(host: str, netns: NetNamespace, ca: bytes, user: KeyPair | str) -> "Transport":
    """Requests as one user (client certificate or bearer token) from within a namespace."""
    context = ssl.create_default_context(cadata=ca.decode())
    headers = {"Authorization": f"Bearer {user}"} if isinstance(user, str) else {}
    if isinstance(user, KeyPair):
        with tempfile.TemporaryDirectory() as scratch:  # ssl loads keys from files alone
            context.load_cert_chain(*user.write(Path(scratch), "user"))
    return Transport(lambda: _InsideConnection(host, context, netns), headers)


def proxied(path: Path) -> "Transport":
    """Requests through the Unix socket of a ``kubectl proxy``."""
    return Transport(lambda: _SocketConnection(path))


class Transport:
    """Blocking requests as one user.

    A connection that the server closed meanwhile, as after an outage, is made anew once.
    """

    def __init__(
        self,
        connect: Callable[[], http.client.HTTPConnection],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._connect = connect
        self._headers = headers
        self._local = threading.local()
        self._open: list[http.client.HTTPConnection] = []

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request. ``body`` is sent as JSON. Raises OSError if the server is away."""
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body).encode()
        merged = {"Content-Type": "application/json", **self._headers, **(headers or {})}
        used = getattr(self._local, "connection", None) is not None
        try:
            return self._exchange(method, target, data, merged)
        except (http.client.HTTPException, OSError):
            self._drop()
            if not used:
                raise
        return self._exchange(method, target, data, merged)

    def _exchange(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Reply:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._connect()
            self._local.connection = connection
            self._open.append(connection)
        try:
            connection.request(method, target, body=data, headers=dict(headers))
            answer = connection.getresponse()
            return Reply(answer.status, answer.read())
        except http.client.HTTPException as error:
            self._drop()
            raise ConnectionError(f"{method} {target}: {error!r}") from error
        except OSError:
            self._drop()
            raise

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            self._open.remove(connection)
            connection.close()

    def close(self) -> None:
        """Close the connections of all threads, which must be idle."""
        self._local = threading.local()
        while self._open:
            self._open.pop().close()
