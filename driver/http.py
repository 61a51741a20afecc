"""/healthz, /readyz and /metrics, on a thread of their own so that they answer under load."""

import json
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from driver.listening import Probe

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What each path answers with; called on the server's threads."""

    live: Callable[[], Probe]
    ready: Callable[[], Probe]
    metrics: Callable[[], bytes]


class HttpServer:
    """Serves ``endpoints`` on a socket of ``listen``, and closes it in the end."""

    def __init__(self, listener: socket.socket, endpoints: Endpoints) -> None:
        handler = type("Handler", (_Handler,), {"endpoints": endpoints})
        self._server = _Server(listener, handler)
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
    daemon_threads = True

    def __init__(self, listener: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()  # its own, which is not bound
        self.socket = listener


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
