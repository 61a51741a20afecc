import click
import pytest

from cli.drawing import BAR, cards, draw
from cli.drawing_shares import SharePart, widths
from tests.cli.test_sim_and_map import DRIVER, claim, device, resource_slice


def shared(card="gpu-a", kind="mps", memory="80Gi"):
    made = device(f"{card}-{kind}", "0000:1b:00.0")
    made["attributes"] |= {"type": {"string": kind}}
    made["capacity"] = {"memory": {"value": memory}} if memory else {}
    return made


def share(name, of, memory="20Gi", percent="25"):
    made = claim(name, of, pod=f"{name}-pod")
    (result,) = made["status"]["allocation"]["devices"]["results"]
    result["shareID"] = name
    result["consumedCapacity"] = {"memory": memory, "computePercent": percent, "shares": "1"}
    return made


WHOLE = device("gpu-a", "0000:1b:00.0")
CARD = [resource_slice(1, WHOLE, shared(), shared(kind="timeslice"))]


def drawn(claims, slices=CARD):
    head, _, line = map(click.unstyle, draw(cards(slices, claims, DRIVER)))
    return head, line


def test_shares_are_drawn_to_scale_with_their_numbers():
    claims = [share("one", "gpu-a-mps"), share("two", "gpu-a-mps", "40Gi", "0")]
    head, line = drawn(claims)
    assert "1 card, 1 held, 0 free" in head
    assert "█" * 5 + "▌" + "█" * 11 + "▌" + "░" * 6 in line
    assert line.endswith("20Gi 25 %: team/one (one-pod); 40Gi: team/two (two-pod)")


def test_turns_have_equal_parts():
    claims = [share(name, "gpu-a-timeslice", "0") for name in ("one", "two", "three")]
    _, line = drawn(claims)
    assert ("█" * 7 + "▌") * 3 in line
    assert line.endswith("a turn: team/three (three-pod)")


def test_a_card_that_is_only_shared_is_drawn_by_its_own_name():
    head, line = drawn([], [resource_slice(1, shared())])
    assert "1 card, 0 held, 1 free" in head
    assert line.split()[0] == "gpu-a"
    assert "80Gi" in line


def test_a_taint_of_a_shared_card_is_told_once():
    bad = shared() | {"taints": [{"key": "x/mps", "value": "down", "effect": "NoSchedule"}]}
    _, line = drawn([share("one", "gpu-a-mps")], [resource_slice(1, bad)])
    assert line.count("tainted: x/mps=down:NoSchedule") == 1
    assert "█" in line


@pytest.mark.parametrize(
    ("sizes", "columns"),
    [
        (["80Gi"], [24]),
        (["1Mi"] * 3, [1, 1, 1]),
        (["40Gi", "40Gi"], [12, 12]),
        (["79Gi", "1Mi", "1Mi"], [24, 0, 0]),
        (["1Mi"] * 30, [1] * 24 + [0] * 6),
    ],
)
def test_every_share_has_a_column_as_long_as_there_are_any(sizes, columns):
    parts = [SharePart("a/b", "mps", size, "0") for size in sizes]
    assert widths(parts, "80Gi", BAR) == columns
    assert widths([SharePart("a/b", "mps", "0", "0")], "", BAR) == [1]
