"""What is written about shares: records, CDI specs, the claim's status."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.v1alpha1 import ENFORCEMENT
from driver.errors import ClaimError, InvalidConfigError, StateError, UnknownDeviceError
from driver.model.claims import ClaimState, Held, Record
from driver.model.gpu import GpuProcess
from driver.model.ids import ClaimUid
from driver.model.mig import Placement
from driver.model.shares import Consumed, Limits, MpsFacts, Share, SharingFacts, Wishes
from driver.model.steps import (
    CreateMigDevice,
    EnsureMigMode,
    LimitPod,
    MpsNamespace,
    ServeMps,
    SetTimeSlice,
    TimeSliceInterval,
)
from driver.model.units import Bytes
from driver.model.view import MpsFolders
from driver.plan.cdi import cdi_spec
from driver.plan.cdi_rules import validate_spec
from driver.plan.claims import parse_claim
from driver.plan.facts import sharing_from_dict, sharing_to_dict
from driver.plan.limits import limited
from driver.plan.names import card_part
from driver.plan.prepare import plan_prepare
from driver.plan.reconcile import ClaimView, Clock, Release, Wait, decide
from driver.plan.records import from_payload, to_payload
from driver.plan.status import Troubles, status_patch
from tests.plan.builders import (
    BOOT,
    DRIVER,
    POOL,
    by_name,
    gpu,
    put,
    raw_claim,
    result,
    view,
)
from tests.plan.shared import GIB, MEMORY, MIB, NEW_DRIVER, PODS, V3, of, part, shared_of, wants

CARD = gpu(0)
MPS, TURNS = shared_of(CARD, modes="[mps, timeslice]")
NS, _ = shared_of(CARD, V3, NEW_DRIVER, modes="[mps]")
POD, _ = shared_of(CARD, PODS, NEW_DRIVER, modes="[mps]")
ALONE, _ = shared_of(CARD, SharingFacts(), modes="[mps]")
UID = "5f0e6f0a-8f1b-4d1c-9a53-0b0f5d1f8a11"
FOLDERS = MpsFolders("/run/aliquot-mps/00000000/pipe", "/run/aliquot-mps/00000000/shm", "main")


def planned(*allocations, devices=(MPS, TURNS)):
    return plan_prepare(of(UID, *allocations), by_name(*devices), (), BOOT)


# CDI ---------------------------------------------------------------------------------------


def edits(record, folders=FOLDERS):
    spec = cdi_spec(record, view(CARD, mps={CARD.uuid: folders}))
    validate_spec(spec)
    return [each["containerEdits"] for each in spec["devices"]]


def environment(edit):
    return dict(entry.split("=", 1) for entry in edit["env"])


def test_a_share_as_its_container_gets_it():
    (found,) = edits(planned(part(MPS, 14 * GIB, 25)))
    told = environment(found)
    assert {key: value for key, value in told.items() if not key.startswith("ALIQUOT_R0")} == {
        "ALIQUOT_DEVICE_UUID": CARD.uuid,
        "ALIQUOT_DEVICE_TYPE": "mps",
        "ALIQUOT_DEVICE_MEMORY_BYTES": str(14 * GIB),
        "ALIQUOT_DEVICE_MEMORY_FRACTION": "0.1757",
        "ALIQUOT_DEVICE_COMPUTE_PERCENT": "25",
        "CUDA_MPS_PIPE_DIRECTORY": FOLDERS.pipe,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=14336M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    assert [(each["hostPath"], each["containerPath"]) for each in found["mounts"]] == [
        (FOLDERS.pipe, FOLDERS.pipe),
        (FOLDERS.shm, "/dev/shm"),  # noqa: S108
    ]
    assert [each["path"] for each in found["deviceNodes"]] == ["/dev/nvidia0"]


def test_a_share_without_a_cap_says_nothing_of_one():
    (found,) = edits(planned(part(MPS, 14 * GIB, 0)), replace(FOLDERS, shm=None))
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environment(found)
    assert environment(found)["ALIQUOT_DEVICE_COMPUTE_PERCENT"] == "100"
    assert len(found["mounts"]) == 1


def test_a_namespace_is_all_that_its_container_sees():
    first, second = edits(planned(part(NS, 14 * GIB, 25), part(NS, 10 * GIB, 0, 1), devices=[NS]))
    for n, found in enumerate((first, second)):
        path = f"{FOLDERS.pipe}/main/{UID.replace('-', '')}_{n}"
        told = environment(found)
        assert told["CUDA_MPS_PIPE_DIRECTORY"] == found["mounts"][0]["hostPath"] == path
        assert len(path) <= 87
        assert [key for key in told if key.startswith("CUDA")] == ["CUDA_MPS_PIPE_DIRECTORY"]
    assert environment(first)["ALIQUOT_R0_0_MEMORY_BYTES"] == str(14 * GIB)
    (found,) = edits(planned(part(NS), devices=[NS]), replace(FOLDERS, server=None))
    assert environment(found)["CUDA_MPS_PIPE_DIRECTORY"].startswith(f"{FOLDERS.pipe}/{UID[:8]}")


def test_a_share_of_everything_is_a_whole_card_to_its_container():
    (found,) = edits(planned(part(MPS, MEMORY)))
    told = environment(found)
    assert told["ALIQUOT_DEVICE_TYPE"] == "gpu"
    assert told["ALIQUOT_DEVICE_MEMORY_FRACTION"] == "1"
    assert told["ALIQUOT_DEVICE_MEMORY_BYTES"] == str(CARD.memory)
    assert "mounts" not in found
    assert not any(key.startswith("CUDA") for key in told)


@pytest.mark.parametrize(
    ("memory", "size", "fraction"),
    [(None, CARD.memory, "1"), (20 * GIB, 20 * GIB, "0.2511")],
)
def test_a_turn_is_told_what_was_counted(memory, size, fraction):
    told = environment(edits(planned(part(TURNS, memory)))[0])
    assert told["ALIQUOT_DEVICE_TYPE"] == "timeslice"
    assert told["ALIQUOT_DEVICE_MEMORY_BYTES"] == str(size)
    assert told["ALIQUOT_DEVICE_MEMORY_FRACTION"] == fraction
    assert told["ALIQUOT_DEVICE_COMPUTE_PERCENT"] == "100"


def test_a_share_without_its_daemon_is_refused():
    with pytest.raises(UnknownDeviceError, match=r"MPS control daemon of card .* does not run"):
        cdi_spec(planned(part(MPS)), view(CARD))
    admin = planned(part(MPS, admin=True))
    assert "mounts" not in edits(admin)[0]


@given(st.integers(1, MEMORY // MIB - 1))
def test_the_fraction_of_the_total_is_never_above_the_limit(mib):
    told = environment(edits(planned(part(MPS, mib * MIB)))[0])
    assert float(told["ALIQUOT_DEVICE_MEMORY_FRACTION"]) * CARD.memory <= mib * MIB
    limit = told["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
    assert limit == f"0={mib}M"


# Status ------------------------------------------------------------------------------------


def entry(record, **more):
    patch = status_patch(record, {CARD.uuid: CARD}, driver=DRIVER, now="now", **more)
    return patch["status"]["devices"][0]


def said(record, **more):
    return entry(record, **more)["conditions"][0]["message"].removeprefix(
        f"share of card {CARD.uuid} ({CARD.product}); "
    )


def test_a_claim_says_its_limits_and_what_they_are_worth():
    found = entry(planned(part(MPS, 14 * GIB, 25)))
    assert found["data"] == {
        "type": "mps",
        "uuid": CARD.uuid,
        "memoryLimit": "mpsCooperative",
        "computeLimit": "mpsCooperative",
        "memory": "14Gi",
        "computePercent": 25,
        "product": CARD.product,
    }
    assert found["shareID"] == part(MPS).share_id
    assert said(planned(part(MPS, 14 * GIB, 25))) == (
        "memory 14Gi limited by mpsCooperative; compute 25 % limited by mpsCooperative; for each "
        "process by itself"
    )
    assert "compute not capped" in said(planned(part(MPS)))
    assert said(planned(part(ALONE), devices=[ALONE])).endswith(
        "containers of other user ids on the card wait until this one's end"
    )
    tighter = said(planned(wants(MPS, memory_limit=Bytes(GIB))))
    assert tighter.startswith("memory 1Gi limited by mpsCooperative; less than the 10Gi allocated")


def test_a_turn_says_that_nothing_is_limited():
    found = entry(planned(wants(TURNS, interval=TimeSliceInterval.LONG)))
    assert found["conditions"][0]["message"].startswith("a turn on card")
    assert "neither memory nor compute is limited" in found["conditions"][0]["message"]
    assert found["data"]["memoryLimit"] == found["data"]["computeLimit"] == "none"
    assert (found["data"]["interval"], found["data"]["memory"]) == ("Long", "10Gi")


def test_a_daemon_that_is_down_and_an_excess_are_conditions():
    record = planned(part(MPS))
    troubles = Troubles({CARD.uuid: "exit status 1"}, {CARD.uuid: "11Gi used, 10Gi given"})
    ready, within = entry(record, troubles=troubles)["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "MPSDaemonDown")
    assert "is down: exit status 1; share of card" in ready["message"]
    assert (within["type"], within["status"]) == ("WithinLimits", "False")
    assert within["message"] == "11Gi used, 10Gi given"
    (ready,) = entry(planned(part(TURNS)), troubles=Troubles({CARD.uuid: "x"}))["conditions"]
    assert ready["status"] == "True"


# Records -----------------------------------------------------------------------------------

SIZES = st.none() | st.integers(0, MEMORY).map(Bytes)
PERCENTS = st.none() | st.integers(0, 100)
INTERVALS = st.none() | st.sampled_from(TimeSliceInterval)
LEVELS = st.builds(Limits, st.sampled_from(ENFORCEMENT), st.sampled_from(ENFORCEMENT))
SHARES = st.builds(
    Share,
    st.integers(0, MEMORY).map(Bytes),
    st.integers(0, 100),
    LEVELS,
    SIZES,
    PERCENTS,
    st.booleans(),
    st.none() | st.just("a_0"),
    INTERVALS,
)
ALLOCATIONS = st.builds(
    part,
    st.sampled_from([MPS, TURNS]),
    wishes=st.builds(Wishes, SIZES, PERCENTS, st.sampled_from(ENFORCEMENT), INTERVALS),
    consumed=st.none() | st.builds(Consumed, SIZES, PERCENTS, PERCENTS),
)
STEPS = st.one_of(
    st.builds(ServeMps, st.just(CARD.uuid), SIZES, PERCENTS, st.sampled_from([2, 3])),
    st.builds(MpsNamespace, st.just(CARD.uuid), st.just("a_0"), SIZES, PERCENTS),
    st.builds(LimitPod, st.just(CARD.uuid), st.just(UID), st.integers(0, MEMORY)),
    st.builds(SetTimeSlice, st.just(CARD.uuid), st.sampled_from(TimeSliceInterval)),
    st.builds(EnsureMigMode, st.just(CARD.uuid), st.booleans(), st.booleans()),
    st.just(CreateMigDevice(CARD.uuid, "1g.10gb", 19, Placement(0, 1))),
)


@given(ALLOCATIONS, st.none() | SHARES, st.lists(STEPS, max_size=4))
def test_records_of_shares_come_back_as_they_were(allocation, share, steps):
    held = Held(allocation, CARD.uuid, "timeslice" if share is None else "mps", share=share)
    record = Record(of(UID, allocation), (held,), tuple(steps), ClaimState.STARTED, BOOT)
    assert from_payload(to_payload(record)) == record


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("allocations", 0, "share"), 7, "allocations[0].share: got 7, want an object"),
        (("allocations", 0, "share", "memoryBy"), "much", "allocations[0].share.memoryBy: got"),
        (("allocations", 0, "share", "memory"), "14Gi", "allocations[0].share.memory: got '14Gi'"),
        (("allocations", 0, "consumed", "shares"), -1, "allocations[0].consumed.shares: got -1"),
        (("allocations", 0, "wishes", "interval"), "x", "allocations[0].wishes.interval: got 'x'"),
        (("steps", 1, "protocol"), None, "steps[1].protocol: got null"),
    ],
)
def test_a_share_that_cannot_be_trusted_is_named(path, value, text):
    wished = wants(MPS, percent_limit=5, interval=None)
    good = to_payload(planned(wished))
    good["allocations"][0]["wishes"]["interval"] = "Long"
    with pytest.raises(StateError) as caught:
        from_payload(put(good, path, value))
    assert text in str(caught.value)


def test_unknown_fields_of_a_share_are_kept():
    later = to_payload(planned(part(MPS)))
    later["allocations"][0]["share"]["cgroup"] = "/kubepods"
    later["steps"][1]["priority"] = 1
    assert to_payload(from_payload(later)) == later


def test_a_step_without_its_pod_cannot_be_trusted():
    good = to_payload(limited(planned(part(POD), devices=(POD,)), [UID]))
    assert good["steps"][-1] == {
        "do": "limitPod",
        "gpu": CARD.uuid,
        "pod": UID,
        "memoryLimit": 10 * GIB,
    }
    for key, text in (("pod", "steps[3].pod: got ''"), ("memoryLimit", "steps[3].memoryLimit")):
        with pytest.raises(StateError) as caught:
            from_payload(put(good, ("steps", 3, key), ""))
        assert text in str(caught.value)


def test_facts_of_an_older_version_are_taken_up():
    raw = sharing_to_dict(SharingFacts())
    del raw["no_cgroup"]
    assert sharing_from_dict(raw) == SharingFacts()


def test_facts_of_sharing_come_back_as_they_were():
    for facts in (SharingFacts(), SharingFacts(MpsFacts((2, 3), multi_user=True), True, "")):
        assert sharing_from_dict(sharing_to_dict(facts)) == facts
    bad: list[dict[str, Any]] = [{}, {"mps": {}}, {"mps": None, "x": 1}, {"mps": {"protocols": 2}}]
    for raw in bad:
        with pytest.raises(StateError, match="facts of sharing"):
            sharing_from_dict(raw)


# Claims as the API has them ----------------------------------------------------------------

CONSUMED = {"memory": "10Gi", "computePercent": "25", "shares": "1"}


def parsed(config=(), **changes):
    raw = raw_claim(result("gpu-00000000-mps", **changes), config=config)
    return parse_claim(raw, DRIVER, POOL).allocations[0]


def config(kind, source="FromClaim", **fields):
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": kind} | fields
    return {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}


@pytest.mark.parametrize(
    ("consumed", "wanted"),
    [
        (None, None),
        ({}, None),
        (CONSUMED, Consumed(Bytes(10 * GIB), 25, 1)),
        ({"memory": "10.5Gi"}, Consumed(memory=Bytes(21 * GIB // 2))),
        ({"memory": "500m", "other": "3"}, Consumed(memory=Bytes(0))),
        ({"computePercent": "0", "shares": 1}, Consumed(None, 0, 1)),
    ],
)
def test_what_was_consumed_is_read_and_rounded_down(consumed, wanted):
    assert parsed(consumedCapacity=consumed).consumed == wanted


@pytest.mark.parametrize("value", ["lots", "-1", "10Gi\n", True, None, "1e30", {}])
def test_a_consumed_capacity_that_is_no_quantity_is_refused(value):
    with pytest.raises(ClaimError, match=r"results\[0\].consumedCapacity.memory: got"):
        parsed(consumedCapacity={"memory": value})


def test_configs_of_class_and_claim_become_wishes():
    found = parsed(
        config=[
            config("MpsConfig", memoryLimit="20Gi"),
            config("MpsConfig", "FromClass", memoryLimit="8Gi", requireEnforcement="mpsProcess"),
            config("TimeSliceConfig", interval="Long"),
        ]
    )
    assert found.wishes == Wishes(Bytes(8 * GIB), None, "mpsProcess", TimeSliceInterval.LONG)
    assert parsed().wishes == Wishes()
    with pytest.raises(InvalidConfigError, match=r"config\[0\].opaque.parameters.memoryLimit"):
        parsed(config=[config("MpsConfig", memoryLimit="/etc")])


# Orphans -----------------------------------------------------------------------------------


def record_of(uid):
    return replace(planned(part(MPS)), claim=of(uid, part(MPS)))


def verdict(records, running):
    place = (CARD.uuid, None)
    views = {ClaimUid("a"): ClaimView.GONE}
    clock = Clock(now=1000.0, grace=60.0)
    return decide(records, views, {place: running}, {ClaimUid("a"): 0.0}, clock)[0]


@pytest.mark.parametrize(
    ("others", "claim", "released"),
    [([], None, False), (["b"], None, True), (["b"], "b", True), (["b"], "a", False)],
)
def test_processes_of_others_on_a_shared_card_do_not_hold_an_orphan(others, claim, released):
    running = (GpuProcess(42, None, claim=claim and ClaimUid(claim)),)
    found = verdict([record_of("a"), *map(record_of, others)], running)
    assert isinstance(found, Release if released else Wait)


def test_names_tell_their_card():
    for name in ("gpu-1", "gpu-1-mps", "gpu-1-timeslice", "gpu-1-mig-1g-10gb-0"):
        assert card_part(name) == "gpu-1"
