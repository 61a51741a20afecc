import pytest
from click.testing import CliRunner

from bench.packing import Row, _summary, main, measured
from bench.packing_mixes import LOADS, MIXES, PRODUCTS, mixes
from bench.packing_real import Fleet
from cli.plan import shapes_of
from driver.plan.order import Order, Pass
from driver.sim.profiles import PROFILES


@pytest.mark.parametrize("product", PRODUCTS)
def test_every_mix_asks_for_profiles_that_the_product_has(product):
    board = PROFILES[product]
    known = {shape.name for shape in shapes_of(board)}
    found = mixes(board)
    assert list(found) == list(MIXES)
    for shares in found.values():
        assert set(shares) <= known
        assert sum(shares.values()) == 100


def test_rows_are_the_same_in_every_run():
    first, again = (list(measured(["a30"], 2, 2_000, 1_200)) for _ in range(2))
    assert first == again
    assert [(row.mix, row.load) for row in first[:4]] == [
        *(("small", load) for load in LOADS),
        ("mid", LOADS[0]),
    ]
    assert all(0 < row.naive < 0.5 for row in first)


def test_the_summary_names_what_misses_the_goals():
    rows = [
        Row("a30", mix, load, 0.1, built_in, searched)
        for mix, built_in, searched in (("small", 0.11, 0.1), ("mid", 0.08, 0.05))
        for load in LOADS
    ]
    assert list(_summary(rows)) == [
        *(f"a30 {load:.0%}: mean of the mixes, searched 0.75, built-in 0.95" for load in LOADS),
        "worst of all, searched: 1.00",
        "worst of all, built_in: 1.10 (over 1.02)",
    ]
    poor = [Row("a30", "small", load, 0.1, 0.1, 0.09) for load in LOADS]
    assert "searched 0.90 (over 0.8)" in next(iter(_summary(poor)))


def test_the_table_command_prints_what_the_table_holds():
    result = CliRunner().invoke(main, ["table", "a30", "--tries", "1", "--claims", "4000"])
    assert result.stdout.splitlines() == [
        "score 1.000",
        "    (1, 1): (Pass((0, 1, 2, 3), down=False),),  # 1g.6gb",
        "    (2, 2): (Pass((0, 2), down=False),),  # 2g.12gb",
        "    (4, 4): (Pass((0,), down=False),),  # 4g.24gb",
    ]


def test_the_real_bench_publishes_devices_in_the_order_that_it_measures():
    fleet = Fleet.of("h200")
    order = Order({"2g.35gb": (Pass((2,), down=True), Pass((4, 0)))})
    found = fleet.resource_slices(order)
    spots = fleet.spots()
    by_profile = {
        part["spec"]["devices"][0]["attributes"]["profile"]["string"]: [
            spots[device["name"]] for device in part["spec"]["devices"]
        ]
        for part in found
        if part["spec"].get("devices")
    }
    down = [(card, 2) for card in range(7, -1, -1)]
    up = [(card, start) for card in range(8) for start in (4, 0)]
    assert by_profile["2g.35gb"] == [*down, *up]
    assert by_profile["4g.71gb"] == [(card, 0) for card in range(8)]
