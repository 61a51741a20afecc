import asyncio
import contextlib

import pytest

from kubeletplugin.contract import Object
from kubeletplugin.reflector import Pace, Reflector
from tests.kube.script import PATH, Script, bookmark, failure, item, line, stream
from tests.polling import eventually

FAST = Pace(relist=0.0, backoff=0.001, backoff_max=0.01, calm=0.001)


class Told:
    """What ``on_event`` was told, as ``KIND name@version``."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, kind: str, found: Object) -> None:
        metadata = found["metadata"]
        self.events.append(f"{kind} {metadata['name']}@{metadata['resourceVersion']}")


@contextlib.asynccontextmanager
async def reflecting(script: Script, on_event=None, pace: Pace = FAST):
    async with script as client:
        reflector = Reflector(client, PATH, on_event, pace=pace)
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector
        finally:
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_it_lists_then_follows_and_keeps_unknown_fields():
    script = Script(
        [(100, [item("a", 90), item("b", 91)])],
        [
            stream(
                line("ADDED", item("c", 101)),
                line("MODIFIED", item("a", 102)),
                line("DELETED", item("b", 103)),
            )
        ],
    )
    told = Told()
    async with reflecting(script, told) as reflector:
        await reflector.synced.wait()
        await eventually(lambda: len(script.watches) > 1)
        assert sorted(reflector.store) == ["u-a", "u-c"]
        assert reflector.store["u-a"]["futureField"] == {"a": 1}
    assert told.events == [
        "ADDED a@90", "ADDED b@91", "ADDED c@101", "MODIFIED a@102", "DELETED b@103",
    ]  # fmt: skip
    assert script.watches[:2] == ["100", "103"]


async def test_a_bookmark_moves_the_point_of_resumption():
    script = Script([(100, [])], [stream(line("ADDED", item("a", 101)), bookmark(150))])
    async with reflecting(script):
        await eventually(lambda: len(script.watches) > 1)
    assert (script.watches[1], script.listed) == ("150", 1)


@pytest.mark.parametrize(
    "gone",
    [failure(410, "Expired"), stream(line("ERROR", {"code": 410, "reason": "Expired"}))],
    ids=["as a status", "in the stream"],
)
async def test_a_version_that_is_too_old_lists_again_and_tells_the_difference(gone):
    script = Script(
        [(100, [item("a", 90), item("b", 91), item("c", 92)]),
         (200, [item("b", 91), item("c", 150), item("d", 160)])],
        [gone],
    )  # fmt: skip
    told = Told()
    async with reflecting(script, told) as reflector:
        await eventually(lambda: script.listed == 2 and len(script.watches) > 1)
        assert sorted(reflector.store) == ["u-b", "u-c", "u-d"]
    assert told.events[3:] == ["DELETED a@90", "MODIFIED c@150", "ADDED d@160"]
    assert script.watches[1] == "200"


async def test_a_connection_cut_in_a_line_resumes_behind_the_last_whole_one():
    long = line("MODIFIED", item("a", 301, pad=3_000_000))
    half = line("MODIFIED", item("a", 302))[:50]
    script = Script([(300, [item("a", 300)])], [stream(long, half, cut=True), stream(half)])
    async with reflecting(script) as reflector:
        await eventually(lambda: len(script.watches) > 2)
        assert len(reflector.store["u-a"]["spec"]["pad"]) == 3_000_000
        assert reflector.last_error is not None
    assert script.watches[1:3] == ["301", "301"]
    assert script.listed == 1


async def test_a_line_without_end_is_given_up():
    script = Script([(300, [])], [stream(*[b"x" * (1 << 20)] * 5)])
    async with reflecting(script) as reflector:
        await eventually(lambda: len(script.watches) > 1)
        assert "longer than" in str(reflector.last_error)


async def test_what_is_not_json_is_an_error_like_others():
    script = Script([(300, [])], [stream(b"<html>\n")])
    async with reflecting(script) as reflector:
        await eventually(lambda: len(script.watches) > 1)
        assert "not JSON" in str(reflector.last_error)


async def test_server_errors_resume_without_a_list():
    script = Script([(100, [])], [failure(500), failure(429, after="0"), stream(bookmark(120))])
    async with reflecting(script) as reflector:
        await eventually(lambda: len(script.watches) > 3)
        assert reflector.last_error is not None
    assert script.watches[:4] == ["100", "100", "100", "120"]
    assert script.listed == 1


async def test_retry_after_is_waited_for():
    script = Script([(100, [])], [failure(429, after="3600")])
    async with reflecting(script) as reflector:
        await eventually(lambda: reflector.last_error is not None)
        await asyncio.sleep(0.1)
        assert len(script.watches) == 1


async def test_watches_that_close_at_once_do_not_spin(monkeypatch):
    waits: list[float] = []
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(
        "kubeletplugin.reflector.random.uniform", lambda low, high: (low + high) / 2
    )
    monkeypatch.setattr("kubeletplugin.reflector.asyncio.sleep", counted)
    script = Script([(100, [])], [])
    async with reflecting(script, pace=Pace(relist=0.0, backoff=0.2, backoff_max=3.0)):
        while len(script.watches) < 7:
            await sleep(0.01)
    assert waits[:6] == [0.2, 0.4, 0.8, 1.6, 3.0, 3.0]


async def test_a_watch_that_lasted_ends_the_back_off(server, client):
    pace = Pace(relist=0.0, backoff=0.001, calm=0.0)
    reflector = Reflector(client, PATH, pace=pace)
    reflector._failures = 9
    task = asyncio.create_task(reflector.run())
    await eventually(lambda: reflector.live)
    await server.pause()
    await server.resume()
    await eventually(lambda: reflector.live)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not reflector.live


async def test_the_list_is_repeated_whatever_the_watch_says(server, client):
    told = Told()
    reflector = Reflector(client, PATH, told, pace=Pace(relist=0.05, calm=0.0))
    task = asyncio.create_task(reflector.run())
    await eventually(lambda: server.requests["list", "resourceslices"] > 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.events == []


async def test_a_server_that_pays_no_heed_to_time_is_left_for_the_list():
    forever = stream(*[bookmark(100 + n) for n in range(2000)])
    script = Script([(100, [])], [forever] * 3)
    async with reflecting(script, pace=Pace(relist=0.001, backoff=0.001, calm=0.0)):
        await eventually(lambda: script.listed > 3)


async def test_a_list_that_fails_is_tried_again(server, client):
    fault = server.fail(503, verb="list", count=3)
    reflector = Reflector(client, PATH, pace=FAST)
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (fault.count, reflector.last_error) == (0, None)


async def test_a_handler_that_fails_stops_nothing(caplog):
    script = Script([(100, [item("a", 90)])], [stream(line("ADDED", item("b", 101)))])

    def broken(kind: str, found: Object) -> None:
        raise RuntimeError("boom")

    async with reflecting(script, broken) as reflector:
        await eventually(lambda: "u-b" in reflector.store)
    assert "handler of a ADDED event" in caplog.text
