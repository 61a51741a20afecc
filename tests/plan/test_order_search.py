import random  # seeded: the same claims in every run
from itertools import islice

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from bench.packing_mixes import mixes
from cli.plan import shapes_of
from driver.plan.order import Order, Shape, listed, naive
from driver.plan.order_moves import neighbours
from driver.plan.order_search import Problem, around, search
from driver.plan.order_sim import Mix, Stream, given, ledger, poisson, rejected, rejected_shares
from driver.sim.partition import fits
from driver.sim.profiles import PROFILES
from driver.sim.world import GpuInstance

MIG = [name for name, board in PROFILES.items() if board.mig_capable]


def board_and_shapes(product):
    board = PROFILES[product]
    return board, shapes_of(board)


def any_order(rng, shapes):
    order = naive(shapes)
    for _ in range(12):
        name = rng.choice(list(order.profiles))
        changed = rng.choice(neighbours(order.profiles[name]) or [order.profiles[name]])
        order = Order({**order.profiles, name: changed})
    return order


def by_the_rules(board, stream, order, cards):
    """What first fit gives with the simulator's own rules of placements."""
    profiles = {each.name: each for each in board.gpu_instance_profiles}
    present: list[dict[int, GpuInstance]] = [{} for _ in range(cards)]
    got: list[tuple[int, int] | None] = [None] * len(stream.kinds)
    for event in stream.events:
        if event < 0:
            if (spot := got[~event]) is not None:
                del present[spot[0]][~event]
            continue
        wanted = profiles[stream.profiles[stream.kinds[event]]]
        for card, start in listed(order.profiles[wanted.name], wanted.starts, cards):
            if fits(board, list(present[card].values()), wanted, start):
                present[card][event] = GpuInstance(event, wanted.id, start, wanted.size)
                got[event] = card, start
                break
    return got


@pytest.mark.parametrize("product", MIG)
@pytest.mark.parametrize("load", [0.6, 1.5])
def test_the_simulation_gives_what_the_rules_of_placements_give(product, load):
    board, shapes = board_and_shapes(product)
    rng = random.Random(f"{product} {load}")  # noqa: S311
    everything = Mix({shape.name: rng.randint(1, 5) for shape in shapes}, load)
    for round_ in range(5):
        stream = poisson(everything, shapes, 2, 300, f"{round_}")
        order = any_order(rng, shapes)
        got = given(stream, order, shapes, 2)
        assert got == by_the_rules(board, stream, order, 2)
        assert None in got


@pytest.mark.parametrize("product", MIG)
def test_partitions_that_live_at_the_same_time_share_no_memory_slice(product):
    _, shapes = board_and_shapes(product)
    size = {shape.name: shape.size for shape in shapes}
    stream = poisson(Mix({shape.name: 1 for shape in shapes}, 1.0), shapes, 3, 500, "overlap")
    order = any_order(random.Random(1), shapes)  # noqa: S311
    got = given(stream, order, shapes, 3)
    used: dict[tuple[int, int], int] = {}
    for event in stream.events:
        claim = event if event >= 0 else ~event
        if (spot := got[claim]) is None:
            continue
        for memory in range(spot[1], spot[1] + size[stream.profiles[stream.kinds[claim]]]):
            if event >= 0:
                assert (spot[0], memory) not in used
                used[spot[0], memory] = claim
            else:
                assert used.pop((spot[0], memory)) == claim
    assert used == {}


def test_a_counter_that_can_run_out_is_a_limit_of_its_own():
    shapes = [
        Shape("half", 2, 2, (0, 2), {"engines": 2}),
        Shape("one", 1, 1, (0, 1, 2, 3), {"engines": 1}),
    ]
    stream = Stream(("half", "one"), (0, 1, 0), (0, 1, 2, ~0, ~1, ~2))
    assert given(stream, naive(shapes), shapes, 1) == [(0, 0), None, None]
    assert given(stream, naive(shapes), shapes, 2) == [(0, 0), (1, 0), None]
    assert rejected(stream, naive(shapes), shapes, 1) == 3
    assert stream.offered(shapes) == 5


@for_all(st.data())
@settings(max_examples=60)
def test_the_ledger_says_no_exactly_when_a_counter_is_exceeded(data):
    _, shapes = board_and_shapes(data.draw(st.sampled_from(MIG)))
    book = ledger(shapes)
    used, counts = book.empty, dict.fromkeys(book.fields, 0)
    totals = {
        name: max((shape.consumes.get(name, 0) for shape in shapes), default=0) or 1
        for name in book.fields
    }
    for shape in data.draw(st.lists(st.sampled_from(shapes), max_size=8)):
        start = data.draw(st.sampled_from(shape.starts))
        need = {f"memory-slice-{i}": 1 for i in range(start, start + shape.size)}
        need |= {name: n for name, n in shape.consumes.items() if name in counts}
        then = {name: counts[name] + need.get(name, 0) for name in counts}
        enough = all(then[name] <= totals[name] for name in counts)
        assert enough == (not (used + book.cost(shape, start)) & book.guard)
        if enough:
            used, counts = used + book.cost(shape, start), then


def test_a_stream_offers_the_load_it_was_asked_for():
    _, shapes = board_and_shapes("h100-80gb")
    stream = poisson(Mix({"1g.10gb": 3, "3g.40gb": 1}, 0.6), shapes, 8, 40_000, "load")
    alive = total = 0
    slices = [1, 3]
    for event in stream.events[10_000:-10_000]:
        weight = slices[stream.kinds[event if event >= 0 else ~event]]
        alive += weight if event >= 0 else -weight
        total += alive
    first = sum(
        slices[stream.kinds[e if e >= 0 else ~e]] * (1 if e >= 0 else -1)
        for e in stream.events[:10_000]
    )
    mean = first + total / (len(stream.events) - 20_000)
    assert mean == pytest.approx(0.6 * 56, rel=0.05)
    assert stream.kinds.count(0) / len(stream.kinds) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("product", ["h100-80gb", "a30"])
@pytest.mark.parametrize("mix", ["small", "mid", "llm", "whole-heavy"])
def test_the_search_is_never_worse_than_naive_on_its_own_streams(product, mix):
    board, shapes = board_and_shapes(product)
    problem = Problem(shapes, 4, around(mixes(board)[mix], 0.6), claims=1_200)
    steps = list(islice(search(problem), 60))
    assert steps[0].best == naive(shapes)
    assert steps[0].score == 1
    scores = [step.score for step in steps]
    assert scores == sorted(scores, reverse=True)
    assert [step.tried for step in steps] == list(range(1, 61))


def test_the_search_finds_what_is_known_to_be_better_for_many_large_ones():
    board, shapes = board_and_shapes("h100-80gb")
    mix = mixes(board)["whole-heavy"]
    found = list(islice(search(Problem(shapes, 8, around(mix, 0.6), claims=3_600)), 150))[-1]
    orders = (found.best, naive(shapes))
    ours, plain = rejected_shares(orders, Mix(mix, 0.6), shapes, 8, (20_000, "unseen"))
    assert ours < 0.92 * plain


def test_the_same_seed_tries_the_same_orders_and_another_one_others():
    board, shapes = board_and_shapes("a30")
    mix = around(mixes(board)["small"], 0.6)

    def scores(seed):
        problem = Problem(shapes, 2, mix, claims=600, seed=seed)
        return [(step.score, step.best) for step in islice(search(problem), 80)]

    assert scores(1) == scores(1) != scores(2)


def test_a_mix_without_rejections_is_searched_without_complaint():
    _, shapes = board_and_shapes("a30")
    problem = Problem(shapes, 8, around({"1g.6gb": 1}, 0.01), claims=48)
    assert [step.score for step in islice(search(problem), 5)] == [0, 0, 0, 0, 0]
