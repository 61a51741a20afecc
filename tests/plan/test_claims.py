import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.errors import ClaimError, InvalidConfigError, UnknownDeviceError
from driver.model.claims import AllocatedClaim
from driver.model.gpu import ComputeMode
from driver.plan.claims import parse_claim
from tests.plan.builders import DRIVER, POOL, config, paths, put, raw_claim, result

PARAMETERS = "status.allocation.devices.config[{}].opaque.parameters"


def parse(raw):
    return parse_claim(raw, DRIVER, POOL)


def modes(*results, config):
    return [each.compute_mode for each in parse(raw_claim(*results, config=config)).allocations]


def without(raw, *path):
    """A copy of ``raw`` that lacks the field at ``path``."""
    changed = copy.deepcopy(raw)
    place = changed
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return changed


def test_a_claim_is_reduced_to_our_allocations_at_their_positions():
    other = result(driver="net.example.com", pool="elsewhere", device="eth0")
    share = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    found = parse(raw_claim(other, result(shareID=share), result(adminAccess=True, request="a/b")))
    assert str(found) == "team/claim-a:uid-a"
    first, second = found.allocations
    assert (first.position, first.request, first.pool) == (1, "gpu", POOL)
    assert (first.device, first.share_id, first.admin) == ("gpu-00000000", share, False)
    assert (second.position, second.request, second.admin) == (2, "a/b", True)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        pytest.param({}, "metadata: got null, want an object", id="empty"),
        pytest.param(None, "claim: got null, want an object", id="null"),
        pytest.param(without(raw_claim(result()), "status"), "claim-a:uid-a is not alloc", id="0"),
        pytest.param(
            without(raw_claim(result()), "status", "allocation"),
            "claim team/claim-a:uid-a is not allocated",
            id="not-allocated",
        ),
        pytest.param(raw_claim(), "no allocated device of driver gpu.aliquot.dev", id="nothing"),
        pytest.param(
            raw_claim(result(driver="other.dev")), "no allocated device of driver", id="others"
        ),
        pytest.param(
            without(raw_claim(result()), "status", "allocation", "devices"),
            "no allocated device",
            id="no-devices",
        ),
        pytest.param(raw_claim(result(request="GPU\n")), r"results\[0\].request: got", id="form"),
        pytest.param(raw_claim(result(shareID=7)), r"results\[0\].shareID: got 7", id="share"),
        pytest.param(raw_claim("x"), r"results\[0\]: got 'x', want an object", id="result"),
        pytest.param(
            put(raw_claim(result()), ("status", "allocation", "devices", "config"), 7),
            "config: got 7, want a list",
            id="config-is-no-list",
        ),
    ],
)
def test_what_cannot_be_acted_on_is_refused_with_its_reason(raw, text):
    with pytest.raises(ClaimError, match=text):
        parse(raw)


def test_a_device_of_another_pool_names_both_pools():
    with pytest.raises(
        UnknownDeviceError, match=r"of pool node-2 is alloc.*this node's pool is n"
    ):
        parse(raw_claim(result(pool="node-2")))


def test_later_config_wins_and_the_class_comes_first_wherever_it_stands():
    exclusive, default = (
        config("FromClaim", computeMode="ExclusiveProcess"),
        config("FromClass", computeMode="Default"),
    )
    assert modes(result(), config=[exclusive, default]) == [ComputeMode.EXCLUSIVE_PROCESS]
    assert modes(result(), config=[default]) == [ComputeMode.DEFAULT]
    assert modes(result(), config=[exclusive, config("FromClaim")]) == [
        ComputeMode.EXCLUSIVE_PROCESS
    ]
    assert modes(result(), config=[]) == [None]


@pytest.mark.parametrize(
    ("requests", "covered"),
    [
        pytest.param(None, [True, True], id="none-named"),
        pytest.param([], [True, True], id="empty"),
        pytest.param(["main"], [True, False], id="request"),
        pytest.param(["main/small"], [True, False], id="sub-request"),
        pytest.param(["main/large"], [False, False], id="other-sub-request"),
        pytest.param(["plain"], [False, True], id="plain"),
    ],
)
def test_config_goes_to_the_requests_it_names(requests, covered):
    entry = config(computeMode="ExclusiveProcess") | {"requests": requests}
    results = (result(request="main/small"), result(request="plain"))
    assert [mode is not None for mode in modes(*results, config=[entry])] == covered


def test_config_of_other_drivers_is_not_looked_at():
    strange = {"source": "?", "opaque": {"driver": "other.dev", "parameters": [1]}}
    assert modes(result(), config=[strange, {"source": "FromClaim"}, {"opaque": 3}]) == [None]


def test_every_problem_of_our_config_is_told_with_its_path():
    entries = [
        config(computeMode="Fast", colour="red"),
        {"source": "FromClaim", "opaque": {"driver": "other.dev"}},
        config(apiVersion="gpu.aliquot.dev/v2"),
        {"source": "FromClass", "opaque": {"driver": DRIVER}},
    ]
    with pytest.raises(InvalidConfigError) as caught:
        parse(raw_claim(result(), config=entries))
    starts = [problem.partition(": ")[0] for problem in caught.value.problems]
    assert starts == [
        f"{PARAMETERS.format(0)}.colour",
        f"{PARAMETERS.format(0)}.computeMode",
        f"{PARAMETERS.format(2)}.apiVersion",
        PARAMETERS.format(3),
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"source": "FromNowhere"}, r"config\[0\].source: got 'FromNowhere'"),
        ({"source": ["FromClass"]}, r"config\[0\].source: got \['FromClass'\]"),
        ({"requests": "gpu"}, r"config\[0\].requests: got 'gpu'"),
        ({"requests": [1]}, r"config\[0\].requests: got \[1\]"),
    ],
)
def test_config_that_cannot_be_placed_is_refused(change, text):
    with pytest.raises(ClaimError, match=text):
        parse(raw_claim(result(), config=[config() | change]))


VALID = raw_claim(
    result(),
    result(request="a/b", adminAccess=True, shareID="7c9e6679"),
    config=[config("FromClass", computeMode="Default") | {"requests": ["gpu"]}, config()],
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=300)
@given(st.sampled_from(list(paths(VALID))), JSON)
def test_no_mangled_claim_crashes_the_parser(path, junk):
    found: object
    try:
        found = parse(put(VALID, path, junk))
    except ClaimError as error:
        found = str(error)
    assert isinstance(found, AllocatedClaim) or found
