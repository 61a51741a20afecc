import pytest

from api.journal import (
    JournalAllocation,
    JournalError,
    JournalRecord,
    decode_record,
    encode_record,
)

RECORD = JournalRecord(
    uid="uid",
    namespace="team",
    name="claim",
    state="PrepareCompleted",
    boot_id="boot",
    allocations=(JournalAllocation(0, "gpu", "node-1", "gpu-3f0c2d5a", "GPU-3f0c2d5a", "gpu"),),
)


def test_a_record_without_options_writes_none():
    assert encode_record(RECORD) == {
        "version": 1,
        "claim": {"uid": "uid", "namespace": "team", "name": "claim"},
        "state": "PrepareCompleted",
        "bootId": "boot",
        "allocations": [
            {
                "position": 0,
                "request": "gpu",
                "pool": "node-1",
                "device": "gpu-3f0c2d5a",
                "gpu": "GPU-3f0c2d5a",
                "type": "gpu",
            }
        ],
        "steps": [],
    }
    assert decode_record(encode_record(RECORD)) == RECORD


def test_unknown_fields_are_told_apart_and_written_back_in_place():
    raw = encode_record(RECORD)
    raw["allocations"][0]["memory"] = "10Gi"
    raw["node"] = None
    record = decode_record(raw)
    assert record.unknown == {"allocations": [{"memory": "10Gi"}], "node": None}
    assert encode_record(record) == raw


def test_unknown_fields_of_items_that_are_no_longer_there_are_dropped():
    record = JournalRecord(
        "uid", "team", "claim", "PrepareStarted", "boot", (), unknown={"steps": [{"a": 1}]}
    )
    assert encode_record(record)["steps"] == []


@pytest.mark.parametrize("raw", [None, [], "x", 7])
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(JournalError, match=r"record: got .*, want an object"):
        decode_record(raw)
