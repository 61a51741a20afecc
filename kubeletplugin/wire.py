"""One connection to a server that speaks HTTP/1.1; h11 knows the protocol.

A request is one write to the socket, and an answer is read where it arrives, without streams and
tasks in between: a pod's start waits for a GET made here.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import h11

from kubeletplugin.short import NotPlainError, ShortReader

MAX_HEAD = 64 << 10  # bytes
MAX_BODY = 64 << 20  # bytes of one answer; a page of 500 large objects
_PAUSE_AT = 1 << 20  # bytes of a stream that nobody has taken yet

_END = h11.EndOfMessage()
_TARGET = re.compile(r"[!-~]+")  # as h11 has it


class HttpError(Exception):
    """No whole answer. The text is the cause; server and request are the caller's to name."""


class DisconnectedError(HttpError):
    """The server closed the connection before the first byte of its answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: status, its phrase, header fields with lower-case names, body."""

    status: int
    phrase: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. A GET becomes h11's own kind only where h11 must read the answer: making one
    is a tenth of what a GET costs."""

    method: str
    target: str
    fields: tuple[tuple[str, str], ...]
    body: bytes = b""

    def check(self) -> "Request":
        """Itself. Raises HttpError for what cannot be sent."""
        if _TARGET.fullmatch(self.target) is None:
            raise _forbidden()
        _checked(self.fields)
        return self

    def head(self) -> bytes:
        """Without a body, as it goes out."""
        return f"{self.method} {self.target} HTTP/1.1\r\n".encode() + _block(self.fields)

    def for_h11(self) -> h11.Request:
        headers = _checked(self.fields).headers.raw_items()
        if self.body:
            headers.append((b"Content-Length", b"%d" % len(self.body)))
        return h11.Request(method=self.method, target=self.target, headers=headers)


def _forbidden() -> HttpError:
    """Without h11's text, which may hold the token."""
    return HttpError("path or credentials have characters that HTTP forbids")


@lru_cache(maxsize=4)
def _checked(fields: tuple[tuple[str, str], ...]) -> h11.Request:
    """A request with fields that h11 has checked. They seldom change."""
    try:
        return h11.Request(method="GET", target="/", headers=list(fields))
    except (h11.LocalProtocolError, ValueError):
        raise _forbidden() from None


@lru_cache(maxsize=4)
def _block(fields: tuple[tuple[str, str], ...]) -> bytes:
    """The lines of a head after its first, and the empty one."""
    lines = (b"%b: %b\r\n" % field for field in _checked(fields).headers.raw_items())
    return b"".join(lines) + b"\r\n"


class Wire(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, forget: Callable[["Wire"], None]) -> None:
        self.head: h11.Response | None = None
        self.idle_since = 0.0
        self.gone = False
        self._forget = forget
        self._asking: Request | None = None  # what h11 does not know of yet
        self._short = ShortReader()
        self._answer: Reply | None = None
        self._http = h11.Connection(h11.CLIENT, MAX_HEAD)
        self._asked = self._heard = self._complete = self._paused = False
        self._whole = True  # wake the waiter for the complete answer only
        self._parts: list[bytes] = []
        self._size = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (what TCP and TLS give)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._asked or self._complete:
            self.close()  # nobody asked
            return
        self._heard = True
        self._read(data)

    def eof_received(self) -> None:
        self._read(b"")
        self.gone = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._forget(self)
        if exc is None:
            self._read(b"")
        elif not self._complete:
            self._fail(HttpError(str(exc)) if self._heard else DisconnectedError(str(exc)))

    async def ask(self, ask: Request, *, whole: bool) -> None:
        """Send, then wait for the head of the answer, or for all of it."""
        self._asked, self._whole = True, whole
        if self._error is None and whole and ask.method == "GET" and not ask.body:
            self._asking, self._short = ask, ShortReader()
            self.transport.write(ask.head())
        elif self._error is None:
            self.transport.write(self._sent(ask))
        while not self._complete and (whole or self.head is None):
            await self._news()

    def _sent(self, ask: Request) -> bytes:
        """What h11 makes of a request that it then awaits the answer of."""
        send = self._http.send
        head = send(ask.for_h11()) or b""
        content = send(h11.Data(data=ask.body)) or b"" if ask.body else b""
        return head + content + (send(_END) or b"")

    async def chunk(self, quiet_s: float) -> bytes:
        """What has arrived of the body, after at most ``quiet_s``; empty at its end."""
        while not self._parts and not self._complete:
            async with asyncio.timeout(quiet_s):
                await self._news()
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        return self.body()

    def reply(self, body: bytes = b"") -> Reply:
        """The answer's head; after ``ask``."""
        if self._answer is not None:
            return self._answer
        head = self.head
        assert head is not None  # noqa: S101  (what ask waits for)
        return Reply(head.status_code, head.reason.decode("latin-1"), head.headers, body)

    def body(self) -> bytes:
        """What has arrived and was not taken yet."""
        parts, self._parts, self._size = self._parts, [], 0
        return b"".join(parts)

    def next_cycle(self) -> bool:
        """Ready for the next exchange; False: this connection can have none. What nobody took of
        this answer would else be the beginning of the next one, or keep it from being read."""
        http = self._http
        if self.gone or not self._complete or self._parts:
            return False
        if self._answer is None:
            done = http.our_state is h11.DONE and http.their_state is h11.DONE
            if not done or http.trailing_data[0]:
                return False
            http.start_next_cycle()
        self.head = self._answer = None
        self._asked = self._heard = self._complete = False
        return True

    def close(self) -> None:
        """At once: there is nothing left to say, and TLS would wait for the other side."""
        self.gone = True
        self._forget(self)
        self.transport.abort()

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _read(self, data: bytes) -> None:
        """Feed what came; an empty ``data`` is the end of the connection."""
        if self._error is not None:
            return
        if not data and not self._heard:
            self._fail(DisconnectedError("Server disconnected"))
            return
        if self._asking is not None:
            if self._read_short(self._asking, data):
                return
            data = bytes(self._short.buffer)  # b"" follows by connection_lost
        try:
            self._http.receive_data(data)
            while not self._complete and self._take(self._http.next_event()):
                pass
        except h11.RemoteProtocolError as error:
            self._fail(HttpError(str(error)))
            return
        if self._complete or not self._whole:
            self._wake()

    def _read_short(self, asking: Request, data: bytes) -> bool:
        """False: h11 must read what came, and the rest."""
        short = self._short
        try:
            body = short.feed(data)
        except NotPlainError:
            data, body = b"", None
        if not data:  # the end of the connection is no plain end of an answer
            self._asking = None
            self._sent(asking)
            return False
        if body is not None and short.head is not None:
            head, self._asking = short.head, None
            self._answer = Reply(head.status, head.phrase, head.headers, body)
            self._complete = True
            self._wake()
        return True

    def _take(self, event: Any) -> bool:
        """False: nothing more is there until more bytes come."""
        kind = type(event)  # isinstance is slow for these: their base is an ABC
        if kind is h11.Data:
            data: bytes = event.data
            self._parts.append(data)
            self._size += len(data)
            self._bound()
        elif kind is h11.Response:
            self.head = event
        elif kind is h11.EndOfMessage:
            self._complete = True
        else:
            return kind is h11.InformationalResponse
        return self._error is None

    def _bound(self) -> None:
        if self._whole and self._size > MAX_BODY:
            self._fail(HttpError(f"the answer is longer than {MAX_BODY} bytes"))
        elif not self._whole and self._size > _PAUSE_AT and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
