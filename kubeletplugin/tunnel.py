"""The way through an HTTP proxy (a kubeconfig's ``proxy-url``): CONNECT, RFC 9110, 9.3.6."""

import asyncio
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_MAX_HEAD = 64 << 10


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where it listens, and its ``Proxy-Authorization`` if it wants one."""

    host: str
    port: int
    authorization: str | None

    @classmethod
    def at(cls, url: str) -> "Proxy":
        """``http://[user:password@]host[:port]``; raises OSError for another kind."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise OSError("proxy-url must begin with http:// and name a host")
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        basic = f"Basic {b64encode(pair.encode()).decode()}" if parts.username else None
        return cls(parts.hostname, parts.port or 80, basic)


async def tunnel(proxy: Proxy, host: str, port: int) -> asyncio.Transport:
    """A connection whose bytes the proxy passes on to ``host``. Raises OSError."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    loop = asyncio.get_running_loop()
    transport, answer = await loop.create_connection(_Answer, proxy.host, proxy.port)
    try:
        who = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        transport.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{who}\r\n".encode())
        line = await answer.status
    except BaseException:
        transport.abort()
        raise
    if line[9:10] == "2":
        return transport
    transport.abort()
    raise OSError(f"the proxy does not pass on to {target}: {line}")


class _Answer(asyncio.Protocol):
    """The head of the proxy's answer; the other side speaks only when spoken to."""

    def __init__(self) -> None:
        self.status: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head or len(self._head) > _MAX_HEAD:
            self._set(self._head.partition(b"\r\n")[0][:200].decode("latin-1"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._set("the proxy closed the connection")

    def _set(self, line: str) -> None:
        if not self.status.done():
            self.status.set_result(line)
