import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.v1alpha1 import ComputeMode, ConfigError, GpuConfig, merge, parse_config

GOOD = {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "GpuConfig"}
EXCLUSIVE = GpuConfig(ComputeMode.EXCLUSIVE_PROCESS)
DEFAULT = GpuConfig(ComputeMode.DEFAULT)


def problems(raw, path="$"):
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, path)
    assert str(caught.value) == "; ".join(caught.value.problems)
    return caught.value.problems


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({}, GpuConfig()),
        ({"computeMode": None}, GpuConfig()),
        ({"computeMode": "Default"}, DEFAULT),
        ({"computeMode": "ExclusiveProcess"}, EXCLUSIVE),
    ],
)
def test_a_config_is_read(fields, config):
    assert parse_config(GOOD | fields) == config


@pytest.mark.parametrize("raw", [None, [], "GpuConfig", 7, True])
def test_what_is_no_object_is_refused_with_what_is_wanted(raw):
    (problem,) = problems(raw, "spec.config[0]")
    assert problem.startswith("spec.config[0]: got ")
    assert problem.endswith(
        "want an object with apiVersion gpu.aliquot.dev/v1alpha1 and a kind (GpuConfig)"
    )


def test_an_empty_object_lacks_its_version_and_kind():
    assert problems({}) == (
        "$.apiVersion: got null, want one of gpu.aliquot.dev/v1alpha1",
        "$.kind: got null, want one of GpuConfig",
    )


def test_every_problem_is_told_together_with_what_is_known():
    raw = {"apiVersion": "gpu.aliquot.dev/v2", "kind": {}, "colour": 1, "computeMode": 3}
    assert problems(raw) == (
        "$.apiVersion: got 'gpu.aliquot.dev/v2', want one of gpu.aliquot.dev/v1alpha1",
        "$.kind: got {}, want one of GpuConfig",
        "$.colour: unknown field; known: apiVersion, kind, computeMode",
        "$.computeMode: got 3, want one of Default, ExclusiveProcess",
    )


def test_strange_keys_cannot_break_the_message():
    (problem,) = problems(GOOD | {"a\nb": {}})
    assert problem.startswith(r"$['a\nb']: unknown field")


def test_a_claim_overrides_a_preference_of_its_class_only_where_it_says_something():
    assert merge(DEFAULT, EXCLUSIVE) == EXCLUSIVE
    assert merge(EXCLUSIVE, GpuConfig()) == EXCLUSIVE
    assert merge(GpuConfig(), GpuConfig()) == GpuConfig()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=8,
)


@given(JSON | st.dictionaries(st.sampled_from(["apiVersion", "kind", "computeMode"]), JSON))
def test_no_json_crashes_the_parser(raw):
    for value in (raw, GOOD | raw if isinstance(raw, dict) else GOOD):
        found: object
        try:
            found = parse_config(value)
        except ConfigError as error:
            found = error.problems
        told = found if isinstance(found, tuple) else ()
        assert isinstance(found, GpuConfig) or told
        assert all(problem.startswith("$") and "\n" not in problem for problem in told)
