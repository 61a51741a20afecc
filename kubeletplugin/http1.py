"""HTTP/1.1 to one server: a pool of kept-alive connections, each a ``wire``."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import partial
from urllib.parse import urlsplit

from kubeletplugin.tunnel import Proxy, tunnel
from kubeletplugin.wire import DisconnectedError, HttpError, Reply, Request, Wire

MAX_IN_FLIGHT = 16  # connections for plain requests: a burst must not pay a TLS handshake each
KEEP_ALIVE_S = 85.0  # kube-apiserver closes idle connections after 90 s
CONNECT_S = 30.0


class Stream:
    """An answer whose body is taken as it comes."""

    def __init__(self, wire: Wire, quiet_s: float) -> None:
        self._wire = wire
        self._quiet_s = quiet_s
        self.reply = wire.reply()  # its body is empty

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises TimeoutError when nothing comes for the stream's ``quiet_s``."""
        while data := await self._wire.chunk(self._quiet_s):
            yield data


class Pool:
    """Connections to ``server``, made when they are needed, kept while they are used.

    ``tls`` None is plain HTTP. ``name`` is what the server's certificate is checked for, where
    not the host's name. ``proxy`` is an ``http://`` URL, with user and password if need be.
    All requests raise HttpError, TimeoutError and OSError.
    """

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext | None = None,
        name: str | None = None,
        proxy: str | None = None,
    ) -> None:
        parts = urlsplit(server)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if tls else 80)
        self._netloc = parts.netloc
        self._base = server if proxy and tls is None else parts.path
        self._tls = tls
        self._name = (name or self._host) if tls else None
        self._proxy = proxy
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._wires: set[Wire] = set()
        self._idle: list[Wire] = []  # the most recently used last

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Reply:
        """Any answer, whole. ``timeout_s`` is for the exchange, not for the turn to begin it.

        Where none comes in time, the connections that are kept are given up too: they lead the
        same way, and each would cost another request its time.
        """
        ask = self._request(method, target, headers, body)
        try:
            async with self._slots, asyncio.timeout(timeout_s):
                wire = await self._answered(ask, whole=True)
                reply = wire.reply(wire.body())
                self._keep(wire)
                return reply
        except TimeoutError:
            for idle in tuple(self._idle):
                idle.close()
            raise

    @contextlib.asynccontextmanager
    async def stream(
        self, target: str, headers: Mapping[str, str], quiet_s: float
    ) -> AsyncIterator[Stream]:
        """A GET whose head is there after ``quiet_s`` at most. It takes none of the turns."""
        ask = self._request("GET", target, headers)
        async with asyncio.timeout(quiet_s):
            wire = await self._answered(ask, whole=False)
        try:
            yield Stream(wire, quiet_s)
        finally:
            self._keep(wire)

    async def close(self) -> None:
        for wire in list(self._wires):
            wire.close()
        await asyncio.sleep(0)  # the sockets close in the loop's next round

    def _request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Request:
        fields = (("Host", self._netloc), *headers.items())
        return Request(method, f"{self._base}{target}", fields, body).check()

    async def _answered(self, ask: Request, *, whole: bool) -> Wire:
        """The connection with the answer. A read that a kept connection had no answer for, since
        the server was closing it, is sent once more; a write may have been done."""
        wire = self._kept()
        if wire is not None:
            try:
                return await self._ask(wire, ask, whole=whole)
            except DisconnectedError:
                if ask.method != "GET":
                    raise
        return await self._ask(await self._connect(), ask, whole=whole)

    @staticmethod
    async def _ask(wire: Wire, ask: Request, *, whole: bool) -> Wire:
        try:
            await wire.ask(ask, whole=whole)
        except BaseException:
            wire.close()  # what still comes on it is for nobody
            raise
        return wire

    def _kept(self) -> Wire | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            wire = self._idle.pop()
            if not wire.gone and now - wire.idle_since < KEEP_ALIVE_S:
                return wire
            wire.close()
        return None

    def _keep(self, wire: Wire) -> None:
        if wire.next_cycle():
            wire.idle_since = asyncio.get_running_loop().time()
            self._idle.append(wire)
        else:
            wire.close()

    def _forget(self, wire: Wire) -> None:
        self._wires.discard(wire)
        if wire in self._idle:
            self._idle.remove(wire)

    async def _connect(self) -> Wire:
        try:
            async with asyncio.timeout(CONNECT_S):
                wire = await (self._through(self._proxy) if self._proxy else self._direct())
        except TimeoutError:
            raise
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise HttpError(f"Cannot connect to host {where} [{error}]") from error
        self._wires.add(wire)
        return wire

    async def _direct(self) -> Wire:
        make = partial(Wire, self._forget)
        _, wire = await asyncio.get_running_loop().create_connection(
            make, self._host, self._port, ssl=self._tls, server_hostname=self._name
        )
        return wire

    async def _through(self, url: str) -> Wire:
        proxy, wire = Proxy.at(url), Wire(self._forget)
        loop = asyncio.get_running_loop()
        if self._tls is None:  # it reads the whole URL, see _base
            _, wire = await loop.create_connection(lambda: wire, proxy.host, proxy.port)
            return wire
        raw = await tunnel(proxy, self._host, self._port)
        try:
            secured = await loop.start_tls(raw, wire, self._tls, server_hostname=self._name)
        except BaseException:
            raw.abort()
            raise
        assert secured is not None  # noqa: S101  (None only for a transport that is closing)
        wire.connection_made(secured)
        return wire
