import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.errors import StateError
from driver.model.claims import ClaimState, Held, Record
from driver.model.gpu import ComputeMode
from driver.model.ids import ClaimUid, GpuUuid, RequestName
from driver.model.mig import Placement
from driver.model.steps import CreateMigDevice, EnsureMigMode, SetComputeMode
from driver.plan.records import from_payload, to_payload
from tests.plan.builders import (
    BOOT,
    allocation,
    claim,
    cuttable,
    gpu,
    holding,
    partition,
    paths,
    put,
    whole,
)

GOLDEN_PARTITIONS = Path(__file__).parent.parent / "data" / "journal_partitions_v1.json"
GOLDEN = Path(__file__).parent.parent / "data" / "journal_record_v1.json"
CARD = gpu(0x3F0C2D5A)
EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


def golden_record():
    card, other = CARD, gpu(1)
    wanted = claim(
        "5f0e6f0a-8f1b-4d1c-9a53-0b0f5d1f8a11",
        allocation(whole(card), 1, compute_mode=EXCLUSIVE),
        allocation(whole(other), 2, admin=True, share_id="7c9e6679-7425-40de-944b-e07fc1f90ae7"),
    )
    held = tuple(
        Held(each, card_.uuid, "gpu")
        for each, card_ in zip(wanted.allocations, (card, other), strict=True)
    )
    steps = (SetComputeMode(card.uuid, EXCLUSIVE),)
    return Record(wanted, held, steps, ClaimState.STARTED, BOOT)


def golden_partition_record():
    """Of two partitions of one card."""
    card = cuttable(0x3F0C2D5A)
    parts = partition(card, "1g.10gb+me", 3), partition(card, "3g.40gb", 4)
    wanted = claim(
        "6a1f7e0b-8f1b-4d1c-9a53-0b0f5d1f8a11",
        *(allocation(each, n) for n, each in enumerate(parts)),
    )
    steps = (
        EnsureMigMode(card.uuid, on=True, toggle=True),
        CreateMigDevice(card.uuid, "1g.10gb+me", 20, Placement(3, 1)),
        CreateMigDevice(card.uuid, "3g.40gb", 9, Placement(4, 4)),
    )
    return holding(wanted, *parts, steps=steps)


def test_partitions_are_read_and_written_as_they_always_were():
    golden = json.loads(GOLDEN_PARTITIONS.read_text())
    assert from_payload(golden) == golden_partition_record()
    assert to_payload(golden_partition_record()) == golden


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("allocations", 0, "partition", "size"), 0, "partition.size: got 0, want 1 or more"),
        (("allocations", 0, "partition", "start"), "3", "partition.start"),
        (("allocations", 0, "partition"), [], "partition: got []"),
        (("steps", 1, "partition"), None, "partition"),
        (("steps", 1, "profileID"), -1, "profileID"),
        (("steps", 0, "on"), 1, "on: got 1, want true or false"),
    ],
)
def test_a_partition_that_cannot_be_trusted_is_named(path, value, said):
    with pytest.raises(StateError) as error:
        from_payload(put(to_payload(golden_partition_record()), path, value))
    assert said in str(error.value)


def test_version_1_is_read_and_written_as_it_always_was():
    golden = json.loads(GOLDEN.read_text())
    assert from_payload(golden) == golden_record()
    assert to_payload(golden_record()) == golden


def test_fields_of_a_later_version_stay_where_they_were():
    later = to_payload(golden_record())
    later["node"] = {"a": [1]}
    later["claim"]["generation"] = 3
    later["allocations"][1]["memory"] = "10Gi"
    later["steps"][0]["since"] = None
    record = from_payload(later)
    assert record == golden_record()
    assert to_payload(record) == later


TEXT = st.text(min_size=1, max_size=8)
ALLOCATIONS = st.builds(
    allocation,
    st.builds(whole, st.builds(gpu, st.integers(0, 9))),
    st.integers(0, 40),
    request=TEXT.map(RequestName),
    pool=TEXT,
    share_id=st.none() | TEXT,
    admin=st.booleans(),
    compute_mode=st.none() | st.sampled_from(ComputeMode),
)


@st.composite
def records(draw):
    made = draw(st.lists(ALLOCATIONS, max_size=4))
    uuids = st.text(min_size=1, max_size=8).map(GpuUuid)
    return Record(
        claim=claim(draw(TEXT.map(ClaimUid)), *made),
        held=tuple(Held(each, draw(uuids), "gpu") for each in made),
        steps=tuple(
            draw(st.lists(st.builds(SetComputeMode, uuids, st.sampled_from(ComputeMode))))
        ),
        state=draw(st.sampled_from(ClaimState)),
        boot_id=draw(TEXT),
    )


@given(records())
def test_every_record_survives_the_way_through_json(record):
    assert from_payload(json.loads(json.dumps(to_payload(record)))) == record


GOOD = json.loads(GOLDEN.read_text())


@settings(max_examples=300)
@given(
    st.sampled_from(list(paths(GOOD))),
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.lists(st.none())
    | st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)
def test_no_mangled_record_crashes_the_reader(path, junk):
    raw = put(GOOD, path, junk)
    try:
        found = to_payload(from_payload(raw))
    except StateError as error:
        told = str(error)
    else:
        assert found == raw
        return
    assert told.startswith("journal record: ")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("version",), 2, "version: got 2, this program reads 1"),
        (("version",), True, "version: got true, want a whole number"),
        (("state",), "Prepared", "state: got 'Prepared', want one of PrepareStarted, Prepare"),
        (("bootId",), "", "bootId: got '', want a text"),
        (("claim",), None, "claim: got null, want an object"),
        (("claim", "uid"), 7, "claim.uid: got 7, want a text"),
        (("allocations",), {}, "allocations: got {}, want a list"),
        (("allocations", 0, "position"), -1, r"allocations\[0\].position: got -1, want a whole"),
        (
            ("allocations", 0, "type"),
            "vgpu",
            r"allocations\[0\].type: got 'vgpu', want one of gpu",
        ),
        (("allocations", 0, "adminAccess"), 1, r"allocations\[0\].adminAccess: got 1, want true"),
        (("steps", 0, "do"), "melt", r"steps\[0\].do: got 'melt', want one of setComputeMode"),
    ],
)
def test_a_field_that_cannot_be_trusted_is_named(path, value, text):
    with pytest.raises(StateError, match=text):
        from_payload(put(GOOD, path, value))


@pytest.mark.parametrize("key", ["version", "claim", "state", "bootId", "allocations", "steps"])
def test_a_missing_field_is_named(key):
    raw = {name: value for name, value in GOOD.items() if name != key}
    with pytest.raises(StateError, match=f"journal record: {key}: missing"):
        from_payload(raw)
