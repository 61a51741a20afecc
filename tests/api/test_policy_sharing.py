import pytest

from api.policy import PolicyProblems, parse_policy
from api.policy_sharing import ShareSize, Sharing

GIB = 1 << 30


def sharing(**fields):
    text = f"gpus: [{{select: {{all: true}}, modes: [mps, timeslice], {_flow(fields)}}}]"
    return parse_policy(text, "policy.yaml").for_gpu("GPU-1", "H100", "0000:01:00.0").sharing


def problems(**fields):
    with pytest.raises(PolicyProblems) as caught:
        sharing(**fields)
    return caught.value.problems


def _flow(fields):
    return ", ".join(f"{key}: {value}" for key, value in fields.items())


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, Sharing()),
        ({"defaultShares": 4, "reserve": "1Gi"}, Sharing(default_shares=4, reserve=GIB)),
        ({"reserve": 0}, Sharing()),
        ({"shareSize": "{memory: 5Gi}"}, Sharing(share_size=ShareSize(5 * GIB))),
        (
            {"shareSize": "{memory: 5Gi, computePercent: 25}"},
            Sharing(share_size=ShareSize(5 * GIB, 25)),
        ),
        (
            {"timeSlice": "{interval: Long, replicas: 8}"},
            Sharing(interval="Long", replicas=8),
        ),
        ({"timeSlice": "{}", "eviction": "overMemory"}, Sharing(eviction="overMemory")),
    ],
)
def test_how_a_card_is_shared_is_read(fields, wanted):
    assert sharing(**fields) == wanted


def test_every_mistake_is_told_with_its_path():
    assert problems(
        defaultShares=49,
        shareSize="{computePercent: 101, colour: red}",
        reserve="lots",
        timeSlice="{interval: long, replicas: 0, x: 1}",
        eviction="always",
    ) == (
        "gpus[0].defaultShares: got 49, want a whole number from 1 to 48",
        "gpus[0].defaultShares: stands beside shareSize, which says it; remove one",
        "gpus[0].reserve: got 'lots', want an amount of memory such as 14Gi, 512Mi or 10.5Gi",
        "gpus[0].eviction: got 'always', want one of never, overMemory",
        "gpus[0].timeSlice.x: unknown field; known: interval, replicas",
        "gpus[0].timeSlice.interval: got 'long', want one of Default, Short, Medium, Long",
        "gpus[0].timeSlice.replicas: got 0, want a whole number from 1 to 48",
        "gpus[0].shareSize.colour: unknown field; known: memory, computePercent",
        "gpus[0].shareSize.computePercent: got 101, want a whole number from 1 to 100",
        "gpus[0].shareSize.memory: missing",
    )
    assert problems(shareSize="4Gi", timeSlice="[]") == (
        "gpus[0].timeSlice: got [], want a mapping with interval and replicas",
        "gpus[0].shareSize: got '4Gi', want a mapping with memory and computePercent",
        "gpus[0].shareSize.memory: missing",
    )
    (problem,) = problems(shareSize="{memory: 1}")
    assert problem.startswith("gpus[0].shareSize.memory: got 1, want an amount of memory")


def test_what_a_policy_needs_of_the_cluster():
    text = "gpus: [{{select: {{all: true}}, modes: [{}]}}]"
    wanted = {
        "gpu": set(),
        "mig": {"counters"},
        "mps": {"sharing"},
        "gpu, timeslice": {"sharing"},
        "mps, mig": {"counters", "sharing"},
    }
    for modes, features in wanted.items():
        assert parse_policy(text.format(modes), "p").wanted_features == features
