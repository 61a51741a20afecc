import asyncio

import pytest

from kubeletplugin import events
from kubeletplugin.events import NORMAL, WARNING, EventRecorder

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "team", "uid": "u-1"},
}
NODE = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}


class Times:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Times()


@pytest.fixture
async def recorder(client, clock):
    made = EventRecorder(client, "gpu.example.com", "node-1", clock)
    yield made
    await made.close()


async def test_an_event_says_of_what_by_whom_and_why(server, recorder):
    recorder.emit(CLAIM, WARNING, "PrepareFailed", "device gpu-0 is lost")
    recorder.emit(NODE, NORMAL, "Published", "8 devices")
    await recorder.close()
    of_node, of_claim = server.objects("events")  # default, team
    assert of_claim["metadata"]["namespace"] == "team"
    assert of_claim["metadata"]["name"].startswith("c.")
    assert of_claim["regarding"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "namespace": "team",
        "name": "c",
        "uid": "u-1",
    }
    assert (of_claim["type"], of_claim["reason"]) == ("Warning", "PrepareFailed")
    assert of_claim["note"] == "device gpu-0 is lost"
    assert of_claim["reportingController"] == "gpu.example.com"
    assert of_claim["reportingInstance"] == "node-1"
    assert of_node["metadata"]["namespace"] == "default"
    assert of_node["regarding"] == NODE


async def test_the_same_again_is_counted_and_written_at_powers_of_two(server, recorder):
    for _ in range(9):
        recorder.emit(CLAIM, WARNING, "PrepareFailed", "lost")
        await recorder._queue.join()
    await recorder.close()
    (stored,) = server.objects("events")
    assert stored["series"]["count"] == 8
    assert server.writes == {("create", "events"): 1, ("patch", "events"): 3}


async def test_a_burst_before_the_first_write_is_one_event(server, recorder):
    for _ in range(5):
        recorder.emit(CLAIM, WARNING, "PrepareFailed", "lost")
    await recorder.close()
    (stored,) = server.objects("events")
    assert stored["series"]["count"] == 5
    assert server.writes == {("create", "events"): 1}


async def test_after_ten_minutes_it_is_a_new_event(server, recorder, clock):
    recorder.emit(CLAIM, WARNING, "PrepareFailed", "lost")
    clock.now = 601.0
    recorder.emit(CLAIM, WARNING, "PrepareFailed", "lost")
    recorder.emit(CLAIM, WARNING, "PrepareFailed", "another text")
    await recorder.close()
    assert len(server.objects("events")) == 3


async def test_a_long_note_is_cut(server, recorder):
    recorder.emit(CLAIM, WARNING, "PrepareFailed", "x" * 2000)
    await recorder.close()
    assert len(server.objects("events")[0]["note"]) == 1024


async def test_errors_of_the_server_are_logged_only(server, recorder, caplog):
    server.fail(403, verb="create", resource="events", reason="Forbidden")
    recorder.emit(CLAIM, WARNING, "First", "lost")
    recorder.emit(CLAIM, WARNING, "Second", "found")
    await recorder.close()
    assert [found["reason"] for found in server.objects("events")] == ["Second"]
    assert "Event First not written" in caplog.text


async def test_bugs_are_logged_only(server, recorder, caplog, monkeypatch):
    async def broken(told):
        raise RuntimeError("boom")

    monkeypatch.setattr(recorder, "_write", broken)
    recorder.emit(CLAIM, WARNING, "First", "lost")
    await recorder.close()
    assert "boom" in caplog.text


async def test_a_full_queue_loses_events_and_counts_them(server, recorder, monkeypatch):
    monkeypatch.setattr(events, "DRAIN_S", 60.0)
    for n in range(events.MAX_QUEUED + 3):
        recorder.emit(CLAIM, WARNING, "PrepareFailed", str(n))
    assert recorder.dropped == 3
    recorder.emit(CLAIM, WARNING, "PrepareFailed", str(events.MAX_QUEUED + 1))
    assert recorder.dropped == 4
    await recorder.close()
    assert len(server.objects("events")) == events.MAX_QUEUED


async def test_the_memory_of_what_was_told_is_bounded(server, recorder, monkeypatch):
    monkeypatch.setattr(events, "MAX_REMEMBERED", 3)
    for n in range(5):
        recorder.emit(CLAIM, WARNING, "PrepareFailed", str(n))
    assert len(recorder._told) == 3


async def test_closing_does_not_wait_for_a_server_that_is_away(server, recorder, monkeypatch):
    monkeypatch.setattr(events, "DRAIN_S", 0.05)

    async def hang(told):
        await asyncio.Event().wait()

    monkeypatch.setattr(recorder, "_write", hang)
    recorder.emit(CLAIM, WARNING, "PrepareFailed", "lost")
    await recorder.close()
    await recorder.close()
    assert server.objects("events") == []
