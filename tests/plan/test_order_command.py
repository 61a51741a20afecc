import pytest
from click.testing import CliRunner

from api.policy import parse_policy
from cli import plan
from cli.main import main
from driver.plan.order import problems
from driver.sim.profiles import PROFILES


@pytest.fixture
def order(monkeypatch):
    """``aliquot plan order`` with short measurements."""
    monkeypatch.setattr(plan, "_UNSEEN", 2_000)
    monkeypatch.setattr("driver.plan.order_search.Problem.__init__.__defaults__", (1_200, 0))

    def call(*arguments):
        return CliRunner().invoke(main, ["plan", "order", *map(str, arguments)])

    return call


def test_the_result_is_a_policy_with_its_rejections_beside_the_naive_ones(order):
    mix = "1g.10gb=5,4g.40gb=3,7g.80gb=2"
    arguments = ("--product", "h100-80gb", "--mix", mix, "--tries", 120, "--seconds", 600)
    result = order(*arguments)
    assert result.exit_code == 0, result.output
    (rule,) = parse_policy(result.stdout, "output").order
    board = PROFILES["h100-80gb"]
    assert rule.product == board.product
    assert set(rule.order.profiles) == {"1g.10gb", "4g.40gb", "7g.80gb"}
    assert problems(rule.order, plan.shapes_of(board)) == []
    rows = [line.split() for line in result.stdout.splitlines() if "%  " in line]
    assert [row[1] for row in rows] == ["50%", "60%", "70%"]
    for _, _, naive, _, this, _ in rows:
        assert float(this.rstrip("%")) <= float(naive.rstrip("%"))
    assert "120 orders tried" in result.stdout
    assert result.stderr == ""
    assert order(*arguments).stdout == result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--product", "h100", "--mix", "1g.10gb=1"),
            ["no model 'h100'; known: a30, a100-40gb, a100-80gb, h100-80gb, h200, b200"],
        ),
        (("--product", "l4", "--mix", "1g.10gb=1"), ["l4 cannot be partitioned; these can: a30,"]),
        (
            ("--product", "a30", "--mix", "1g.5gb=1, 2g.12gb=-1,4g.24gb,1g.6gb=1,1g.6gb=nan"),
            [
                "a30 has no profile '1g.5gb'; it has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g",
                "'2g.12gb=-1': wanted PROFILE=SHARE with a number above 0",
                "'4g.24gb': wanted PROFILE=SHARE",
                "1g.6gb stands here twice",
                "'1g.6gb=nan': wanted PROFILE=SHARE",
            ],
        ),
        (
            ("--product", "a30", "--mix", " , "),
            ["it is empty; wanted PROFILE=SHARE,…, as in 1g.6"],
        ),
        (("--product", "a30", "--mix", "1g.6gb=1", "--load", "0"), ["--load", "0.0"]),
        (("--product", "a30", "--mix", "1g.6gb=1", "--cards", "65"), ["--cards", "65"]),
    ],
)
def test_bad_input_is_told_completely(order, arguments, told):
    result = order(*arguments)
    assert result.exit_code == 2
    for text in told:
        assert text in result.stderr


def test_a_mix_with_nothing_to_gain_says_so(order):
    arguments = ("--product", "a30", "--mix", "1g.6gb=1", "--tries", 5, "--cards", 1)
    result = order(*arguments)
    assert "nothing was found that is better than the naive order" in result.stdout
    (rule,) = parse_policy(result.stdout, "output").order
    assert [each.starts for each in rule.order.profiles["1g.6gb"]] == [(0, 1, 2, 3)]
