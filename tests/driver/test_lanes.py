"""One queue a card."""

import asyncio
import threading

import pytest

from driver.lanes import Lanes
from tests.polling import eventually


@pytest.fixture
def lanes():
    made = Lanes()
    yield made
    made.close()


class Gates:
    """Calls that say that they run and wait to be let go."""

    def __init__(self):
        self.running: set[str] = set()
        self.open = {name: threading.Event() for name in "abc"}

    def call(self, name):
        def body():
            self.running.add(name)
            assert self.open[name].wait(30)
            self.running.discard(name)
            return name

        return body


async def test_calls_on_one_card_come_one_after_another_and_others_do_not_wait(lanes):
    gates = Gates()
    a = asyncio.create_task(lanes.run(["gpu-0", "gpu-1"], gates.call("a")))
    await eventually(lambda: gates.running == {"a"})
    b = asyncio.create_task(lanes.run(["gpu-1"], gates.call("b")))
    c = asyncio.create_task(lanes.run(["gpu-2"], gates.call("c")))
    await eventually(lambda: gates.running == {"a", "c"})
    gates.open["a"].set()
    await eventually(lambda: gates.running == {"b", "c"})
    gates.open["b"].set()
    gates.open["c"].set()
    assert list(await asyncio.gather(a, b, c)) == ["a", "b", "c"]


async def test_claims_on_the_same_cards_in_any_order_do_not_lock_each_other_out(lanes):
    counts = {"gpu-0": 0, "gpu-1": 0}

    def work():
        for gpu in counts:  # not atomic: only right because nobody else is here
            counts[gpu] += 1

    orders = [["gpu-0", "gpu-1"], ["gpu-1", "gpu-0"], ["gpu-1", "gpu-1", "gpu-0"]]
    await asyncio.gather(*(lanes.run(orders[n % 3], work) for n in range(90)))
    assert counts == {"gpu-0": 90, "gpu-1": 90}


async def test_an_error_frees_the_lane(lanes):
    def broken():
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await lanes.run(["gpu-0"], broken)
    assert await lanes.run(["gpu-0"], lambda: 7) == 7
