"""Where threads and coroutines are told to be: this process's own."""

import asyncio
import threading

from kubeletplugin.overdue import waiting_at, whereabouts
from tests.polling import eventually


async def _inner(event):
    await event.wait()


async def _outer(event):
    await _inner(event)


async def test_a_task_is_told_from_its_first_coroutine_to_where_it_waits():
    event = asyncio.Event()
    task = asyncio.create_task(_outer(event))
    await asyncio.sleep(0)
    told = waiting_at(task.get_coro()).split(" > ")
    assert [each.split(" (")[0] for each in told] == ["_outer", "_inner", "Event.wait"]
    assert told[1].startswith("_inner (test_overdue.py:")
    event.set()
    await task
    assert waiting_at(task.get_coro()) == waiting_at(None) == ""


def hang(began, release):
    began.set()
    release.wait()


async def test_other_threads_are_told_with_their_innermost_calls():
    release = threading.Event()
    began = threading.Event()
    thread = threading.Thread(target=hang, args=(began, release), name="stuck")
    thread.start()
    try:
        await eventually(began.is_set)
        await eventually(lambda: "hang (test_overdue.py:" in whereabouts())
        (told,) = [part for part in whereabouts().split("; ") if part.startswith("thread stuck:")]
        assert "wait (threading.py:" in told
        assert "test_other_threads" not in whereabouts()
    finally:
        release.set()
        thread.join()
