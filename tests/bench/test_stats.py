import pytest

from bench.stats import percentile, summary, table, verdict


def test_percentiles_lie_between_neighbours():
    values = [4.0, 1.0, 3.0, 2.0]
    assert percentile(values, 0) == 1.0
    assert percentile(values, 0.5) == 2.5
    assert percentile(values, 1) == 4.0
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 1.1), ([1.0], -0.1)])
def test_a_percentile_of_nothing_or_beyond_the_ends_is_refused(values, share):
    with pytest.raises(ValueError, match="wanted 0 to 1"):
        percentile(values, share)


def test_a_summary_says_how_many_and_the_usual_three():
    found = summary([float(n) for n in range(101)])
    assert (found.n, found.p50, found.p90, found.p99) == (101, 50, 90, 99)
    assert str(found) == "50.00 / 90.00 / 99.00"


def test_a_verdict_compares_medians_and_not_means():
    close = verdict([1.0, 1.0, 100.0], [1.0, 1.0, 1.0], 1.1)
    assert close.met
    assert str(close) == "1.00 (≤ 1.1)"
    late = verdict([3.0], [2.0], 1.1)
    assert not late.met
    assert str(late) == "1.50 (OVER 1.1)"


def test_a_table_aligns_its_columns():
    assert table(("driver", "ms"), [["ours", "9.5"], ["go", 10]]).splitlines() == [
        "driver   ms",
        "------  ---",
        "ours    9.5",
        "go       10",
    ]


def test_a_table_with_a_cell_too_few_is_refused():
    with pytest.raises(ValueError, match="one length"):
        table(("a", "b"), [["x"]])
