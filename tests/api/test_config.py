import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.v1alpha1 import (
    ENFORCEMENT,
    ComputeMode,
    ConfigError,
    Configs,
    GpuConfig,
    MpsConfig,
    TimeSliceConfig,
    merge,
    parse_config,
)

VERSION = "gpu.aliquot.dev/v1alpha1"
GOOD = {"apiVersion": VERSION, "kind": "GpuConfig"}
MPS = {"apiVersion": VERSION, "kind": "MpsConfig"}
TURN = {"apiVersion": VERSION, "kind": "TimeSliceConfig"}
EXCLUSIVE = GpuConfig(ComputeMode.EXCLUSIVE_PROCESS)
DEFAULT = GpuConfig(ComputeMode.DEFAULT)
GIB = 1 << 30
KNOWN = "GpuConfig, MpsConfig, TimeSliceConfig"


def problems(raw, path="$"):
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, path)
    assert str(caught.value) == "; ".join(caught.value.problems)
    return caught.value.problems


@pytest.mark.parametrize(
    ("raw", "config"),
    [
        (GOOD, GpuConfig()),
        (GOOD | {"computeMode": None}, GpuConfig()),
        (GOOD | {"computeMode": "Default"}, DEFAULT),
        (GOOD | {"computeMode": "ExclusiveProcess"}, EXCLUSIVE),
        (MPS, MpsConfig()),
        (
            MPS | {"memoryLimit": None, "computePercentLimit": None, "requireEnforcement": None},
            MpsConfig(),
        ),
        (MPS | {"memoryLimit": "10.5Gi"}, MpsConfig(memory_limit=21 * GIB // 2)),
        (MPS | {"memoryLimit": "1Mi"}, MpsConfig(memory_limit=1 << 20)),
        (MPS | {"memoryLimit": "2500k"}, MpsConfig(memory_limit=2 << 20)),
        (MPS | {"memoryLimit": 3 << 20}, MpsConfig(memory_limit=3 << 20)),
        (MPS | {"computePercentLimit": 100}, MpsConfig(compute_percent_limit=100)),
        (MPS | {"requireEnforcement": "cgroup"}, MpsConfig(require_enforcement="cgroup")),
        (TURN, TimeSliceConfig()),
        (TURN | {"interval": None}, TimeSliceConfig()),
        (TURN | {"interval": "Long"}, TimeSliceConfig("Long")),
    ],
)
def test_a_config_is_read(raw, config):
    assert parse_config(raw) == config


@pytest.mark.parametrize("raw", [None, [], "GpuConfig", 7, True])
def test_what_is_no_object_is_refused_with_what_is_wanted(raw):
    (problem,) = problems(raw, "spec.config[0]")
    assert problem.startswith("spec.config[0]: got ")
    assert problem.endswith(f"want an object with apiVersion {VERSION} and a kind ({KNOWN})")


def test_an_empty_object_lacks_its_version_and_kind():
    assert problems({}) == (
        f"$.apiVersion: got null, want one of {VERSION}",
        f"$.kind: got null, want one of {KNOWN}",
    )


def test_every_problem_is_told_together_with_what_is_known():
    raw = {"apiVersion": "gpu.aliquot.dev/v2", "kind": "GpuConfig", "colour": 1, "computeMode": 3}
    assert problems(raw) == (
        f"$.apiVersion: got 'gpu.aliquot.dev/v2', want one of {VERSION}",
        "$.colour: unknown field; known: apiVersion, kind, computeMode",
        "$.computeMode: got 3, want one of Default, ExclusiveProcess",
    )


def test_fields_of_another_kind_are_unknown():
    (problem,) = problems(TURN | {"memoryLimit": "1Gi"})
    assert problem == "$.memoryLimit: unknown field; known: apiVersion, kind, interval"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("memoryLimit", "1", "got '1', want an amount of memory such as 14Gi"),
        ("memoryLimit", "0", "at least 1Mi"),
        ("memoryLimit", "-1Gi", "got '-1Gi'"),
        ("memoryLimit", "1Gi\n", r"got '1Gi\n'"),
        ("memoryLimit", "\u0661Gi", "got '\u0661Gi'"),
        ("memoryLimit", "1e9", "got '1e9'"),
        ("memoryLimit", True, "got true"),
        ("memoryLimit", "9999999Ti", "got '9999999Ti'"),
        ("memoryLimit", {"a": 1}, "got {'a': 1}"),
        ("computePercentLimit", 0, "want a whole number from 1 to 100"),
        ("computePercentLimit", 101, "want a whole number from 1 to 100"),
        ("computePercentLimit", "50", "got '50', want a whole number from 1 to 100"),
        ("requireEnforcement", "strong", f"want one of {', '.join(ENFORCEMENT)}"),
    ],
)
def test_a_limit_that_is_none_is_refused(field, value, said):
    (problem,) = problems(MPS | {field: value}, "c[0]")
    assert problem.startswith(f"c[0].{field}: ")
    assert said in problem


@pytest.mark.parametrize("interval", ["long", "", 3, "Default\nX=1"])
def test_an_interval_is_one_of_four_words(interval):
    (problem,) = problems(TURN | {"interval": interval})
    assert problem.endswith("want one of Default, Short, Medium, Long")


def test_strange_keys_cannot_break_the_message():
    (problem,) = problems(GOOD | {"a\nb": {}})
    assert problem.startswith(r"$['a\nb']: unknown field")


def merged(*configs):
    found = Configs()
    for each in configs:
        found = merge(found, each)
    return found


def test_a_claim_overrides_a_preference_of_its_class_only_where_it_says_something():
    assert merged(DEFAULT, EXCLUSIVE).gpu == EXCLUSIVE
    assert merged(EXCLUSIVE, GpuConfig()).gpu == EXCLUSIVE
    assert merged(GpuConfig(), GpuConfig()) == Configs()
    assert merged(TimeSliceConfig("Long"), TimeSliceConfig("Short")).time_slice.interval == "Short"
    assert merged(TimeSliceConfig("Long"), TimeSliceConfig()).time_slice.interval == "Long"


def test_configs_of_different_kinds_do_not_touch_each_other():
    found = merged(EXCLUSIVE, MpsConfig(GIB), TimeSliceConfig("Long"))
    assert found == Configs(EXCLUSIVE, MpsConfig(GIB), TimeSliceConfig("Long"))


LIMITS = st.builds(
    MpsConfig,
    st.none() | st.integers(1, 9).map(lambda n: n << 20),
    st.none() | st.integers(1, 100),
    st.sampled_from(ENFORCEMENT),
)


@given(LIMITS, st.lists(LIMITS, max_size=3))
def test_no_claim_loosens_what_its_class_limits(of_class, of_claim):
    found = merged(of_class, *of_claim).mps
    if of_class.memory_limit is not None:
        assert found.memory_limit is not None
        assert found.memory_limit <= of_class.memory_limit
    if of_class.compute_percent_limit is not None:
        assert found.compute_percent_limit is not None
        assert found.compute_percent_limit <= of_class.compute_percent_limit
    levels = ENFORCEMENT.index
    assert levels(found.require_enforcement) >= levels(of_class.require_enforcement)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=8,
)
FIELDS = [
    "apiVersion",
    "kind",
    "computeMode",
    "memoryLimit",
    "computePercentLimit",
    "requireEnforcement",
    "interval",
]


@given(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON), st.sampled_from([GOOD, MPS, TURN]))
def test_no_json_crashes_the_parser(raw, kind):
    for value in (raw, kind | raw if isinstance(raw, dict) else kind):
        found: object
        try:
            found = parse_config(value)
        except ConfigError as error:
            found = error.problems
        told = found if isinstance(found, tuple) else ()
        assert isinstance(found, GpuConfig | MpsConfig | TimeSliceConfig) or told
        assert all(problem.startswith("$") and "\n" not in problem for problem in told)
