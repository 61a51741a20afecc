"""The transport over real sockets, against a server that answers what it is told."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
import trustme

from kubeletplugin import http1, wire
from kubeletplugin.claims import ClaimReader
from kubeletplugin.contract import ClaimRef
from kubeletplugin.http1 import Pool
from kubeletplugin.kube import KubeClient
from kubeletplugin.wire import DisconnectedError, HttpError
from tests.polling import eventually


class Server:
    """Answers each request with the next of ``answers``; the last one for ever.

    None closes without an answer; a path ``/silent`` gets none, and so does whoever asks on one
    of the ``dead`` connections, which are counted from 1.
    """

    def __init__(self, *answers, pieces=1, tls=None):
        self.answers = list(answers)
        self.pieces = pieces
        self.tls = tls
        self.requests = []
        self.connections = self.open = self.most = self.busy = 0
        self.writers = []
        self.dead = set()
        self.hold = asyncio.Event()
        self.hold.set()

    async def _serve(self, reader, writer):
        self.connections += 1
        number = self.connections
        self.open += 1
        self.writers.append(writer)
        try:
            while await self._answer(reader, writer, number):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader, writer, number):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        body = await reader.readexactly(int(length or 0))
        self.requests.append(head + body)
        if head.startswith(b"GET /silent") or number in self.dead:
            return True
        self.busy += 1
        self.most = max(self.most, self.busy)
        await self.hold.wait()
        self.busy -= 1
        answer = self.answers.pop(0) if self.answers[1:] else self.answers[0]
        if answer is None:
            return False
        size = max(1, len(answer) // self.pieces)
        for at in range(0, len(answer), size):
            writer.write(answer[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        return b"onnection: close" not in answer and not answer.endswith(b"EOF")

    @asynccontextmanager
    async def pool(self, tls=None, **more):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        host, self.port = server.sockets[0].getsockname()
        found = Pool(f"{'https' if tls else 'http'}://{host}:{self.port}", tls, **more)
        try:
            yield found
        finally:
            self.hold.set()
            await found.close()
            server.close()
            await server.wait_closed()
            await eventually(lambda: self.open == 0)


def plain(body, status="200 OK", *more):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts):
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return CHUNKS + chunks + b"0\r\n\r\n"


async def get(pool, target="/", timeout_s=5, method="GET", body=b""):
    return await pool.request(method, target, {"A": "b"}, body, timeout_s)


# Whole answers ---------------------------------------------------------------------------


async def test_one_connection_serves_one_request_after_another():
    server = Server(plain(b"one"), chunked(b"tw", b"o" * 100), plain(b"", "204 No Content"))
    async with server.pool() as pool:
        bodies = [(await get(pool, "/x")).body for _ in range(3)]
    assert bodies == [b"one", b"tw" + b"o" * 100, b""]
    assert server.connections == 1
    assert server.requests[0].startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nA: b\r\n" in server.requests[0]


@pytest.mark.parametrize("answer", [plain(b"x" * 300), chunked(b"x" * 299, b"x")])
@pytest.mark.parametrize("pieces", [7, 400])
async def test_an_answer_may_come_in_pieces(answer, pieces):
    async with Server(answer, pieces=pieces).pool() as pool:
        assert (await get(pool)).body == b"x" * 300


async def test_an_error_is_an_answer_too():
    refused = plain(b"{}", "429 Too Many Requests", "Retry-After: 7")
    async with Server(refused).pool() as pool:
        reply = await get(pool)
    assert (reply.status, reply.phrase, reply.body) == (429, "Too Many Requests", b"{}")
    assert dict(reply.headers)[b"retry-after"] == b"7"


async def test_a_head_with_a_line_that_is_no_field_is_no_answer():
    async with Server(plain(b"x", "200 OK", "no field")).pool() as pool:
        with pytest.raises(HttpError, match="illegal header line"):
            await get(pool)


async def test_a_body_goes_out_with_its_length():
    server = Server(plain(b"{}"))
    async with server.pool() as pool:
        await get(pool, "/x", method="POST", body=b'{"a":1}')
    assert server.requests[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert server.requests[0].endswith(b'Content-Length: 7\r\n\r\n{"a":1}')


async def test_an_interim_answer_is_passed_over():
    async with Server(b"HTTP/1.1 103 Early Hints\r\n\r\n" + plain(b"x")).pool() as pool:
        assert (await get(pool)).body == b"x"


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"x", "200 OK", "Connection: close"),
        b"HTTP/1.1 200 OK\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        plain(b"x") + b"more than was asked for",
    ],
)
async def test_a_connection_that_cannot_be_kept_is_not(answer):
    if b"ength" not in answer:
        answer = answer[:-1] + b"EOF"
    server = Server(answer, plain(b"fine"))
    async with server.pool() as pool:
        assert (await get(pool)).body in {b"x", b"EOF"}
        assert (await get(pool)).body == b"fine"
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf EOF",
        CHUNKS + b"zz\r\n",
        CHUNKS + b"9\r\nhalf EOF",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
async def test_what_is_no_whole_answer_is_an_error(answer):
    server = Server(answer, plain(b"fine"))
    async with server.pool() as pool:
        with pytest.raises(HttpError):
            await get(pool)
        assert (await get(pool)).body == b"fine"
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"x" * 600_000),
        chunked(*[b"x" * 1000] * 600),
        chunked(b"x" * 600_000).replace(b"927c0\r\n", b"927c0;name=value\r\n"),
        chunked(b"x" * 600_000)[:-2] + b"Trailer: t\r\n\r\n",
        plain(b"x" * 600_000, "200 OK", "Vary: a", "Vary: b"),
        plain(b"x" * 600_000, "200 OK", "Connection: keep-alive"),
        plain(b"x" * 600_000, "200 OK", "X-Name: \u00e9"),
    ],
)
async def test_what_is_not_plain_is_read_all_the_same_and_its_connection_kept(answer):
    server = Server(answer, plain(b"next"), pieces=9)
    async with server.pool() as pool:
        assert (await get(pool)).body == b"x" * 600_000
        assert (await get(pool)).body == b"next"
        assert (await get(pool, method="POST", body=b"{}")).body == b"next"
        assert (await get(pool)).body == b"next"
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKS + b"1\r\nxyz0\r\n\r\n",
        CHUNKS + b"+1\r\nx\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
    ],
)
async def test_framing_that_is_ambiguous_is_an_error(answer):
    async with Server(answer).pool() as pool:
        with pytest.raises(HttpError):
            await get(pool)


async def test_an_answer_after_the_answer_ends_the_connection():
    server = Server(chunked(b"x") + plain(b"not asked for"), plain(b"fine"))
    async with server.pool() as pool:
        assert (await get(pool)).body == b"x"
        assert (await get(pool)).body == b"fine"
    assert server.connections == 2


async def test_an_answer_without_bounds_is_cut(monkeypatch):
    monkeypatch.setattr(wire, "MAX_BODY", 1000)
    async with Server(plain(b"x" * 300_000)).pool() as pool:
        with pytest.raises(HttpError, match="longer than 1000 bytes"):
            await get(pool)


async def test_what_http_forbids_is_not_sent_and_not_told():
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        for value in ("secret\r\nX: y", "secr\u00e9t"):
            with pytest.raises(HttpError, match="forbids") as caught:
                await pool.request("GET", "/", {"Authorization": value}, b"", 5)
            assert "secr" not in str(caught.value)
        for target in ("/a b", "/a\r\nX: y", "/\u00e9", ""):
            for method, body in (("GET", b""), ("PUT", b"x")):
                with pytest.raises(HttpError, match="forbids"):
                    await pool.request(method, target, {}, body, 5)
    assert server.requests == []


# Connections -----------------------------------------------------------------------------


async def test_a_connection_that_was_idle_too_long_is_not_used_again(monkeypatch):
    monkeypatch.setattr(http1, "KEEP_ALIVE_S", 0.0)
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        await get(pool)
        await get(pool)
    assert server.connections == 2


async def test_an_idle_connection_that_the_server_closes_is_forgotten():
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        await get(pool)
        server.writers[0].close()
        await eventually(lambda: not pool._wires)
        assert pool._idle == []
        assert (await get(pool)).body == b"x"


async def test_words_that_nobody_asked_for_end_the_connection():
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        await get(pool)
        server.writers[0].write(plain(b"unasked"))
        await eventually(lambda: not pool._wires)
        assert (await get(pool)).body == b"x"
    assert server.connections == 2


async def test_a_read_on_a_connection_that_is_being_closed_is_sent_once_more():
    server = Server(plain(b"x"), None, plain(b"again"), None, None)
    async with server.pool() as pool:
        await get(pool)
        assert (await get(pool)).body == b"again"
        with pytest.raises(DisconnectedError):
            await get(pool)
    assert (server.connections, len(server.requests)) == (3, 5)


async def test_a_write_is_never_sent_twice():
    server = Server(plain(b"x"), None, plain(b"again"))
    async with server.pool() as pool:
        await get(pool)
        with pytest.raises(DisconnectedError):
            await get(pool, method="POST", body=b"{}")
    assert len(server.requests) == 2


async def test_a_reset_is_an_error_with_its_cause():
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        asked = asyncio.create_task(get(pool, "/silent"))
        await eventually(lambda: server.requests)
        (connection,) = pool._wires
        connection.connection_lost(ConnectionResetError("reset by peer"))
        with pytest.raises(HttpError, match="reset by peer"):
            await asked


async def test_a_late_answer_is_never_taken_for_the_next_one():
    server = Server(plain(b"second"))
    async with server.pool() as pool:
        with pytest.raises(TimeoutError):
            await get(pool, "/silent", timeout_s=0.05)
        assert (await get(pool)).body == b"second"
    assert server.connections == 2


async def test_silence_ends_what_is_kept_too():
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        await asyncio.gather(*(get(pool) for _ in range(3)))
        with pytest.raises(TimeoutError):
            await get(pool, "/silent", timeout_s=0.05)
        await eventually(lambda: server.open == 0)
        assert (await get(pool)).body == b"x"
    assert server.connections == 4


async def test_a_claim_is_read_although_every_kept_connection_has_died():
    """As behind a load balancer that forgot them: nobody says so, they are only silent."""
    server = Server(plain(b"{}"))
    async with server.pool():
        client = KubeClient.for_url(f"http://127.0.0.1:{server.port}")
        await asyncio.gather(*(client.get("/x") for _ in range(5)))
        server.dead = set(range(server.connections + 1))
        reader = ClaimReader(client)
        assert await reader.get(ClaimRef("ns", "name", "uid"), patience_s=1.0) == {}
        assert server.connections == 6
        await client.close()


async def test_a_cancelled_request_closes_its_connection():
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        asked = asyncio.create_task(get(pool, "/silent"))
        await eventually(lambda: server.requests)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await eventually(lambda: server.open == 0)
        assert not pool._wires


async def test_no_more_than_sixteen_requests_are_under_way():
    server = Server(plain(b"x"))
    server.hold.clear()
    async with server.pool() as pool:
        asked = [asyncio.create_task(get(pool)) for _ in range(40)]
        await eventually(lambda: server.busy == 16)
        server.hold.set()
        assert {reply.body for reply in await asyncio.gather(*asked)} == {b"x"}
    assert (server.most, server.connections) == (16, 16)


async def test_the_most_recently_used_connection_goes_first():
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        await asyncio.gather(*(get(pool) for _ in range(3)))
        last = pool._idle[-1]
        await get(pool)
        assert pool._idle[-1] is last
    assert server.connections == 3


async def test_nobody_at_the_address_is_named():
    server = Server(plain(b"x"))
    async with server.pool() as pool:
        pass
    with pytest.raises(HttpError, match=f"Cannot connect to host 127.0.0.1:{server.port}"):
        await get(pool)


async def test_a_server_that_does_not_take_the_connection_is_given_up(monkeypatch):
    monkeypatch.setattr(http1, "CONNECT_S", 0.05)
    ca = trustme.CA()
    server = Server(plain(b"x"))  # never says the first word of TLS
    async with server.pool(tls=client_tls(ca)) as pool:
        with pytest.raises(TimeoutError):
            await get(pool)


# Streams ---------------------------------------------------------------------------------


async def read(pool, target="/", quiet_s=5.0):
    async with pool.stream(target, {}, quiet_s) as stream:
        return stream.reply.status, b"".join([chunk async for chunk in stream.chunks()])


async def test_a_stream_gives_what_comes_and_its_connection_is_kept():
    server = Server(chunked(b"a" * 10, b"b" * 10), pieces=5)
    async with server.pool() as pool:
        for _ in range(2):
            assert await read(pool) == (200, b"a" * 10 + b"b" * 10)
    assert server.connections == 1


async def test_a_stream_that_is_left_early_closes_its_connection():
    server = Server(CHUNKS + b"1\r\na\r\n")
    async with server.pool() as pool:
        async with pool.stream("/", {}, 5.0) as stream:
            assert await anext(stream.chunks()) == b"a"
        assert not pool._wires
        await eventually(lambda: server.open == 0)


@pytest.mark.parametrize("pause_at", [10, 1000])
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_what_nobody_took_of_a_stream_is_in_no_later_answer(monkeypatch, pause_at, method):
    monkeypatch.setattr(wire, "_PAUSE_AT", pause_at)
    server = Server(chunked(b"of the stream"), plain(b"its own"))
    async with server.pool() as pool:
        async with pool.stream("/", {}, 5.0):
            (connection,) = pool._wires
            await eventually(lambda: connection._complete)
        assert (await get(pool, method=method, body=b"x" * (method == "PUT"))).body == b"its own"
    assert server.connections == 2


@pytest.mark.parametrize("target", ["/", "/silent"])
async def test_a_quiet_stream_is_dead(target):
    async with Server(CHUNKS + b"1\r\na\r\n").pool() as pool:
        with pytest.raises(TimeoutError):
            await read(pool, target, 0.05)


async def test_a_stream_that_is_cut_gives_what_came_then_the_error():
    server, found = Server(CHUNKS + b"3\r\nEOF\r\n4\r\nEOF"), []

    async def collect(stream):
        async for chunk in stream.chunks():
            found.append(chunk)

    async with server.pool() as pool, pool.stream("/", {}, 5.0) as stream:
        with pytest.raises(HttpError, match="incomplete"):
            await collect(stream)
    assert b"".join(found) == b"EOFEOF"


async def test_a_stream_that_nobody_takes_stops_reading(monkeypatch):
    monkeypatch.setattr(wire, "_PAUSE_AT", 1000)
    body = b"x" * 5_000_000
    server = Server(chunked(body), pieces=50)
    async with server.pool() as pool, pool.stream("/", {}, 5.0) as stream:
        (connection,) = pool._wires
        await eventually(lambda: not connection.transport.is_reading())
        assert connection._size < len(body)
        assert b"".join([chunk async for chunk in stream.chunks()]) == body


async def test_closing_the_pool_ends_what_is_under_way():
    server = Server(CHUNKS + b"1\r\na\r\n")
    async with server.pool() as pool:
        reading = asyncio.create_task(read(pool))
        await eventually(lambda: server.requests)
        await pool.close()
        with pytest.raises(HttpError):
            await reading


# TLS -------------------------------------------------------------------------------------


def server_tls(ca, *names):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(tls)
    return tls


def client_tls(ca):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(tls)
    return tls


async def test_tls_checks_the_servers_name():
    ca = trustme.CA()
    server = Server(plain(b"x"), tls=server_tls(ca, "kubernetes.default"))
    async with server.pool(tls=client_tls(ca), name="kubernetes.default") as pool:
        for _ in range(2):
            assert (await get(pool)).body == b"x"
        assert server.connections == 1
        wrong = Pool(f"https://127.0.0.1:{server.port}", client_tls(ca))
        with pytest.raises(HttpError, match=r"Cannot connect.*certificate"):
            await get(wrong)


async def test_a_certificate_of_a_stranger_is_refused():
    server = Server(plain(b"x"), tls=server_tls(trustme.CA(), "127.0.0.1"))
    async with server.pool(tls=client_tls(trustme.CA())) as pool:
        with pytest.raises(HttpError, match="CERTIFICATE_VERIFY_FAILED"):
            await get(pool)
    assert server.requests == []


# Proxies ---------------------------------------------------------------------------------


class Proxy:
    """Passes on what comes after a CONNECT."""

    def __init__(self, answer=b"HTTP/1.1 200 Connection established\r\n\r\n"):
        self.answer = answer
        self.heads = []
        self.writers = []

    async def _serve(self, reader, writer):
        self.writers.append(writer)
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        if self.answer[9:12] == b"200" and self.heads[-1].startswith(b"CONNECT"):
            host, _, port = self.heads[-1].split()[1].decode().partition(":")
            there, back = await asyncio.open_connection(host, int(port))
            self.writers.append(back)
            both = (self._copy(reader, back), self._copy(there, writer))
            await asyncio.gather(*both, return_exceptions=True)
        writer.close()

    @staticmethod
    async def _copy(source, sink):
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
        finally:
            sink.close()

    @asynccontextmanager
    async def url(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        yield f"http://me:se%20cret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        await server.wait_closed()
        for writer in self.writers:
            writer.close()
        await eventually(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_proxy_is_told_where_to_connect_to():
    ca = trustme.CA()
    server, proxy = Server(plain(b"x"), tls=server_tls(ca, "127.0.0.1")), Proxy()
    async with proxy.url() as url, server.pool(tls=client_tls(ca), proxy=url) as pool:
        for _ in range(2):
            assert (await get(pool)).body == b"x"
    (head,) = proxy.heads
    assert head.startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic bWU6c2UgY3JldA==" in head


async def test_without_tls_a_proxy_reads_the_whole_url():
    server, proxy = Server(plain(b"x")), Proxy(plain(b"from the proxy", "200 OK"))
    async with proxy.url() as url, server.pool(proxy=url) as pool:
        assert (await get(pool, "/x")).body == b"from the proxy"
    assert proxy.heads[0].startswith(f"GET http://127.0.0.1:{server.port}/x HTTP/1.1".encode())
    assert server.requests == []


async def test_a_proxy_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(http1, "CONNECT_S", 0.05)
    tls = client_tls(trustme.CA())
    server = Server(plain(b"x"))
    server.hold.clear()
    async with server.pool() as pool:
        through = Pool("https://127.0.0.1:1", tls, proxy=f"http://127.0.0.1:{server.port}")
        with pytest.raises(TimeoutError):
            await get(through)
        server.hold.set()
        assert (await get(pool)).body == b"x"


@pytest.mark.parametrize("answer", [b"HTTP/1.1 403 Forbidden\r\n\r\n", b""])
async def test_a_proxy_that_does_not_pass_on_is_an_error(answer):
    tls = client_tls(trustme.CA())
    async with Proxy(answer).url() as url:
        pool = Pool("https://127.0.0.1:1", tls, proxy=url)
        with pytest.raises(HttpError, match=r"Cannot connect.*the proxy"):
            await get(pool)


async def test_what_is_behind_a_proxy_must_speak_tls_too():
    server, proxy = Server(plain(b"x"), tls=server_tls(trustme.CA(), "127.0.0.1")), Proxy()
    async with (
        proxy.url() as url,
        server.pool(tls=client_tls(trustme.CA()), proxy=url) as pool,
    ):
        with pytest.raises(HttpError, match="CERTIFICATE_VERIFY_FAILED"):
            await get(pool)


async def test_other_kinds_of_proxies_are_refused():
    pool = Pool("https://127.0.0.1:1", client_tls(trustme.CA()), proxy="socks5://a:1")
    with pytest.raises(HttpError, match="must begin with http://"):
        await get(pool)
