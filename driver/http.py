"""/healthz, /readyz and /metrics, on a thread of their own so that they answer under load."""

import json
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Thread

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether all is well, and if not, why."""

    ok: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What each path answers with; called on the server's threads."""

    live: Callable[[], Probe]
    ready: Callable[[], Probe]
    metrics: Callable[[], bytes]


class HttpServer:
    """Serves ``endpoints`` on ``host:port``; port 0 picks one."""

    def __init__(self, address: str, endpoints: Endpoints) -> None:
        """Raises OSError naming the address when it cannot be bound, ValueError when malformed."""
        host, port = split_address(address)
        handler = type("Handler", (_Handler,), {"endpoints": endpoints})
        try:
            self._server = _Server(host, port, handler)
        except OSError as error:
            raise OSError(
                f"cannot listen on {address} for health and metrics: {error.strerror}; "
                "--http-address chooses another one, an empty one turns it off"
            ) from error
        self._thread = Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Without a host it listens on IPv4 and IPv6: the kubelet probes the pod's own address."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        both = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        self._both = both
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Not that of HTTPServer, which asks DNS for a name that nobody needs."""
        if self._both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)


def split_address(address: str) -> tuple[str, int]:
    """``host:port``, ``:port`` or ``[v6]:port``; raises ValueError with the text for the user."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--http-address {address!r} is not host:port with a port up to 65535")
    return host.strip("[]"), int(port)


class _Handler(BaseHTTPRequestHandler):
    endpoints: Endpoints

    def do_GET(self) -> None:
        match self.path.split("?", 1)[0]:
            case "/healthz":
                self._probe(self.endpoints.live())
            case "/readyz":
                self._probe(self.endpoints.ready())
            case "/metrics":
                self._send(200, self.endpoints.metrics(), "text/plain; version=0.0.4")
            case _:
                self._send(404, b"paths: /healthz /readyz /metrics\n", "text/plain")

    def _probe(self, probe: Probe) -> None:
        body = json.dumps({"ok": probe.ok, "reasons": probe.reasons}).encode() + b"\n"
        self._send(200 if probe.ok else 503, body, "application/json")

    def _send(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
