"""Shares and counters as the scheduler of Kubernetes 1.36.3 gives them out."""

from typing import Any

import pytest

from kubeletplugin.testing.allocator import AllocationError, State, choose
from kubeletplugin.testing.allocator_capacity import consumption, written

DRIVER = "gpu.example.com"
RANGE = {"default": "8Gi", "validRange": {"min": "1Mi", "max": "8Gi", "step": "1Mi"}}
PERCENT = {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}
SHARED = {
    "name": "shared",
    "allowMultipleAllocations": True,
    "capacity": {
        "memory": {"value": "8Gi", "requestPolicy": RANGE},
        "percent": {"value": "100", "requestPolicy": PERCENT},
        "shares": {"value": "3", "requestPolicy": {"default": "1", "validValues": ["1"]}},
    },
}
CLASSES: dict[str, Any] = {"any": {"spec": {}}, "shared": {"spec": {}}}


def no_claims() -> list[Any]:
    return []


def uses(*names, counters=("card",)):
    return [
        {"counterSet": name, "counters": {each: {"value": "1"} for each in counters}}
        for name in names
    ]


WHOLE = {"name": "whole", "capacity": {"memory": {"value": "8Gi"}}}
PARTS = [
    {"name": f"part-{n}", "consumesCounters": uses("card", counters=[f"s{n}"])} for n in (0, 1)
]
SETS = [{"name": "card", "counters": {"s0": {"value": "1"}, "s1": {"value": "1"}}}]
ALL = uses("card", counters=["s0", "s1"])


def slices(*devices, sets=()):
    parts = [{"devices": list(devices)}] + ([{"sharedCounters": list(sets)}] if sets else [])
    return [
        {
            "metadata": {"name": str(n)},
            "spec": {
                "driver": DRIVER,
                "nodeName": "node",
                "pool": {"name": "node", "generation": 1, "resourceSliceCount": len(parts)},
                **part,
            },
        }
        for n, part in enumerate(parts)
    ]


CARD = slices(
    WHOLE | {"consumesCounters": ALL}, SHARED | {"consumesCounters": ALL}, *PARTS, sets=SETS
)


def request(name="r", count=1, **requests):
    exactly = {"deviceClassName": "any", "count": count, "capacity": {"requests": requests}}
    return {"name": name, "exactly": exactly}


def on(device, name="r", **requests):
    wanted = request(name, **requests)
    expression = f"device.attributes['{DRIVER}'].kind == '{device}'"
    wanted["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    return wanted


def named(published):
    """Each device with its name as an attribute, so that a claim can ask for it."""
    for part in published:
        for device in part["spec"].get("devices", []):
            device["attributes"] = {"kind": {"string": device["name"]}}
    return published


def give(published, claims, *requests):
    claim = {"metadata": {"name": f"c{len(claims)}"}, "spec": {"devices": {"requests": requests}}}
    allocation = choose(claim, CLASSES, State.of(published, claims))
    claims.append(claim | {"status": {"allocation": allocation}})
    return allocation["devices"]["results"]


def refused(published, claims, *requests):
    with pytest.raises(AllocationError):
        give(published, claims, *requests)


@pytest.mark.parametrize(
    ("wanted", "memory"),
    [
        ({}, "8Gi"),
        ({"memory": "1"}, "1Mi"),
        ({"memory": "1Mi"}, "1Mi"),
        ({"memory": "10.5Gi"}, None),
        ({"memory": "1.5Gi"}, "1536Mi"),
        ({"memory": "1048577"}, "2Mi"),
        ({"memory": "8Gi", "percent": "0"}, "8Gi"),
        ({"percent": "101"}, None),
        ({"shares": "2"}, None),
        ({"colour": "1"}, None),
    ],
)
def test_a_request_is_rounded_up_and_refused_outside_of_its_policy(wanted, memory):
    found = consumption(SHARED, wanted)
    assert (found and written(found)["memory"]) == memory


def test_a_capacity_without_a_policy_is_consumed_whole():
    device = {
        "capacity": {
            "a": {"value": "7"},
            "b": {"value": "7"},
            "c": {"value": "9", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}},
        }
    }
    assert written(consumption(device, {"a": "2", "c": "5"}) or {}) == {
        "a": "2",
        "b": "7",
        "c": "5",
    }


def test_shares_are_given_until_the_card_is_full():
    published, claims = named(slices(SHARED)), no_claims()
    (first,) = give(published, claims, request(memory="4Gi", percent="50"))
    assert first["consumedCapacity"] == {"memory": "4Gi", "percent": "50", "shares": "1"}
    refused(published, claims, request(memory="5Gi"))
    refused(published, claims, request(memory="1Gi", percent="51"))
    (second,) = give(published, claims, request(memory="1Gi"))
    assert second["shareID"] != first["shareID"]
    give(published, claims, request(memory="1Gi"))
    refused(published, claims, request(memory="1Gi"))
    del claims[0]
    give(published, claims, request(memory="1Gi"))


def test_a_claim_may_have_two_shares_of_a_card_but_not_in_one_request():
    published, claims = named(slices(SHARED)), no_claims()
    give(published, claims, request("a", memory="4Gi"), request("b", memory="4Gi"))
    refused(published, [], request("a", memory="4Gi"), request("b", memory="5Gi"))
    refused(published, [], request(count=2, memory="1Gi"))


@pytest.mark.parametrize("first", ["whole", "shared", "part-0"])
def test_counters_keep_the_shapes_of_a_card_apart(first):
    published, claims = named(CARD), no_claims()
    give(published, claims, on(first))
    for other in ("whole", "shared", "part-0"):
        refused(published, claims, on(other))
    if first == "part-0":
        give(published, claims, on("part-1"))
        refused(published, [], on("part-0", "a"), on("whole", "b"))
    claims.clear()
    give(published, claims, on("whole"))


def test_counters_are_charged_once_for_all_shares():
    published, claims = named(CARD), no_claims()
    give(published, claims, on("shared", "a", memory="1Gi"), on("shared", "b", memory="1Gi"))
    give(published, claims, on("shared", memory="1Gi"))
    refused(published, claims, on("part-0"))


def test_of_a_device_that_is_allocated_once_a_capacity_is_a_filter():
    published = named(slices(WHOLE))
    (found,) = give(published, [], request(memory="8Gi"))
    assert "consumedCapacity" not in found
    refused(published, [], request(memory="9Gi"))
    refused(published, [], request(colour="1"))


def test_an_allocation_without_a_share_keeps_a_shared_device_for_itself():
    published = named(slices(SHARED))
    result: dict[str, Any] = {"driver": DRIVER, "pool": "node", "device": "shared"}
    holder = {"status": {"allocation": {"devices": {"results": [result]}}}}
    refused(published, [holder], request(memory="1Mi"))
    result["adminAccess"] = True
    give(published, [holder], request(memory="1Mi"))


def test_admin_access_takes_nothing_from_those_beside_it():
    published, claims = named(CARD), no_claims()
    admin = on("shared", "a")
    admin["exactly"]["adminAccess"] = True
    results = give(published, claims, admin, on("whole", "b"))
    assert [each["device"] for each in results] == ["shared", "whole"]


def test_two_requests_are_paid_from_the_counters_together():
    published = named(CARD)
    results = give(published, [], on("part-0", "a"), on("part-1", "b"))
    assert [each["device"] for each in results] == ["part-0", "part-1"]
    refused(published, [], on("part-0", "a"), on("shared", "b"))
