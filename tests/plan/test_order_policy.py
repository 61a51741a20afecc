import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from api.policy import PolicyProblems, parse_policy
from api.policy_order import Order, OrderRule, Pass, order_data
from driver.plan.order import naive

STARTS = st.lists(st.integers(0, 63), min_size=1, max_size=8, unique=True)


@st.composite
def rules(draw):
    found = []
    for _ in range(draw(st.integers(0, 3))):
        profiles = {}
        for name in draw(st.lists(st.sampled_from(["1g.5gb", "1g.5gb+me", "3g"]), unique=True)):
            starts = draw(STARTS)
            at = draw(st.integers(0, len(starts)))
            parts = [part for part in (starts[:at], starts[at:]) if part]
            profiles[name] = tuple(Pass(tuple(part), draw(st.booleans())) for part in parts)
        found.append(OrderRule(draw(st.text(min_size=1, max_size=5)), Order(profiles)))
    return tuple(found)


@given(rules())
def test_what_is_written_is_read_back(found):
    text = yaml.safe_dump(order_data(found), sort_keys=False, default_flow_style=None)
    assert parse_policy(text, "policy.yaml").order == found


def test_an_order_is_written_as_passes():
    rule = OrderRule("NVIDIA A30", Order({"2g.12gb": (Pass((2, 0), down=True), Pass((4,)))}))
    profiles = {"2g.12gb": [{"down": [2, 0]}, {"up": [4]}]}
    assert order_data([rule]) == {"order": [{"product": "NVIDIA A30", "profiles": profiles}]}


def test_orders_of_a_node_come_before_those_of_all():
    policy = parse_policy(
        """
        order: [{product: "*", profiles: {3g.40gb: [{up: [0, 4]}]}}]
        nodes:
        - nodeName: worker-7
          order: [{product: "*H100*", profiles: {3g.40gb: [{down: [4, 0]}]}}]
        """,
        "policy.yaml",
    )
    assert [rule.product for rule in policy.for_node("worker-7", {}).order] == ["*H100*", "*"]
    assert [rule.product for rule in policy.for_node("worker-8", {}).order] == ["*"]


def test_every_mistake_is_told_with_its_path():
    with pytest.raises(PolicyProblems) as caught:
        parse_policy(
            """
            order:
            - product: ""
              profile: {}
            - product: "*"
              profiles:
                1g.10gb: []
                2g.20gb: [{up: [0, 2], down: [4]}, {sideways: [1]}, {up: []}]
                3g.40gb: [{up: [0, 4]}, {down: [4]}]
                4g.40gb: [{up: [-1, true, 64]}, 3]
                7: [{up: 0}]
                7g.80gb: {up: [0]}
            - NVIDIA
            """,
            "policy.yaml",
        )
    assert list(caught.value.problems) == [
        "order[0].profile: unknown field; known: product, profiles",
        "order[0].profiles: missing",
        "order[0].product: got '', want a pattern of product names",
        "order[1].profiles['1g.10gb']: no pass; leave the profile out to keep its usual order",
        "order[1].profiles['2g.20gb'][0]: got {'down': [4], 'up': [0, 2]}, "
        "want exactly one of up, down",
        "order[1].profiles['2g.20gb'][1].sideways: unknown field; known: up, down",
        "order[1].profiles['2g.20gb'][1]: got {'sideways': [1]}, want exactly one of up, down",
        "order[1].profiles['2g.20gb'][2].up: no start",
        "order[1].profiles['3g.40gb']: start 4 stands here twice",
        *(
            f"order[1].profiles['4g.40gb'][0].up[{i}]: got {value}, "
            "want a whole number from 0 to 63"
            for i, value in enumerate(("-1", "true", "64"))
        ),
        "order[1].profiles['4g.40gb'][1]: got 3, "
        "want a mapping with up or down and a list of starts",
        "order[1].profiles[7]: got 7, want the name of a profile, such as 1g.10gb; quote it",
        "order[1].profiles['7g.80gb']: got {'up': [0]}, "
        "want a list of passes, such as [{up: [0, 1]}]",
        "order[2]: got 'NVIDIA', want a mapping with product and profiles",
    ]


def test_a_policy_without_an_order_names_none():
    assert parse_policy("{}", "policy.yaml").order == ()
    assert naive([]) == Order({})
