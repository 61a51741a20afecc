"""The short way of a GET, against a server that answers what it is told."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from kubeletplugin.warm import NotThisWayError, Reply, WarmGets


class Server:
    """Answers each request with the next of ``answers``; the last one for ever."""

    def __init__(self, *answers, pieces=1):
        self.answers = list(answers)
        self.pieces = pieces
        self.requests = []
        self.connections = 0

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                if self.requests[-1].startswith(b"GET /silent"):
                    continue
                answer = self.answers.pop(0) if self.answers[1:] else self.answers[0]
                if answer is None:
                    break
                size = max(1, len(answer) // self.pieces)
                for at in range(0, len(answer), size):
                    writer.write(answer[at : at + size])
                    await writer.drain()
                    await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def gets(self, keep_s=60.0):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        found = WarmGets(f"http://{host}:{port}", None, None, keep_s)
        try:
            yield found
        finally:
            found.close()
            server.close()
            await server.wait_closed()


def plain(body, status="200 OK", *more):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*parts):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head + chunks + b"0\r\n\r\n"


async def test_one_connection_serves_one_get_after_another():
    server = Server(plain(b"one"), chunked(b"tw", b"o" * 100), plain(b"three"))
    async with server.gets() as gets:
        bodies = [(await gets.get("/x", {"A": "b"}, 5)).body for _ in range(3)]
    assert bodies == [b"one", b"tw" + b"o" * 100, b"three"]
    assert server.connections == 1
    assert server.requests[0].startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nA: b\r\n" in server.requests[0]


@pytest.mark.parametrize("answer", [plain(b"x" * 300), chunked(b"x" * 299, b"x")])
@pytest.mark.parametrize("pieces", [7, 400])
async def test_an_answer_may_come_in_pieces(answer, pieces):
    async with Server(answer, pieces=pieces).gets() as gets:
        assert (await gets.get("/", {}, 5)).body == b"x" * 300


async def test_an_error_is_an_answer_too():
    refused = plain(b"{}", "429 Too Many Requests", "Retry-After: 7")
    async with Server(refused).gets() as gets:
        assert await gets.get("/", {}, 5) == Reply(429, "7", b"{}")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        plain(b"x", "200 OK", "Content-Encoding: gzip"),
        plain(b"x", "200 OK", "Connection: close"),
        b"x" * 70_000,
    ],
)
async def test_what_is_not_understood_is_left_to_the_general_way(answer):
    server = Server(answer, plain(b"fine"))
    async with server.gets() as gets:
        with pytest.raises(NotThisWayError):
            await gets.get("/", {}, 5)
        assert (await gets.get("/", {}, 5)).body == b"fine"
    assert server.connections == 2


async def test_a_connection_that_was_idle_too_long_is_not_used_again():
    server = Server(plain(b"x"))
    async with server.gets(keep_s=0.0) as gets:
        await gets.get("/", {}, 5)
        await gets.get("/", {}, 5)
    assert server.connections == 2


async def test_a_late_answer_is_never_taken_for_the_next_one():
    server = Server(plain(b"second"))
    async with server.gets() as gets:
        with pytest.raises(TimeoutError):
            await gets.get("/silent", {}, 0.01)
        assert (await gets.get("/", {}, 5)).body == b"second"


async def test_gets_at_once_have_connections_of_their_own():
    server = Server(plain(b"x"))
    async with server.gets() as gets:
        found = await asyncio.gather(*(gets.get("/", {}, 5) for _ in range(5)))
        again = await asyncio.gather(*(gets.get("/", {}, 5) for _ in range(5)))
    assert {reply.body for reply in (*found, *again)} == {b"x"}
    assert server.connections == 5


async def test_nobody_at_the_address_is_an_os_error():
    server = Server(plain(b"x"))
    async with server.gets() as gets:
        pass
    with pytest.raises(OSError, match=r"Connect call failed|refused"):
        await gets.get("/", {}, 5)
