import pytest

from driver.errors import UnknownDeviceError
from driver.model.gpu import DeviceNode
from driver.model.mig import MigDevice, Placement
from driver.model.units import Bytes
from driver.plan.cdi import cdi_spec
from driver.plan.cdi_rules import validate_spec
from driver.plan.status import status_patch
from tests.plan.builders import DRIVER, allocation, claim, cuttable, holding, partition, view

CARD = cuttable(0)
PART = partition(CARD, "2g.20gb", 4)
UUID = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"


def cap(minor):
    path = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return DeviceNode(path, None, numbers=(236, minor), mode=0o444)


MADE = MigDevice(UUID, Bytes(20096 << 20), (cap(21), cap(22)))
THERE = view(CARD, partitions={(CARD.uuid, Placement(4, 2)): MADE})


def record(**changes):
    return holding(claim("1d2c", allocation(PART, **changes)), PART)


def test_a_partition_is_its_card_and_two_capabilities_that_the_runtime_makes():
    spec = cdi_spec(record(), THERE)
    validate_spec(spec)
    (device,) = spec["devices"]
    assert device["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0", "hostPath": "/driver/dev/nvidia0", "permissions": "rwm"},
        *(
            {
                "path": f"/dev/nvidia-caps/nvidia-cap{minor}",
                "type": "c",
                "major": 236,
                "minor": minor,
                "fileMode": 292,
                "permissions": "rwm",
            }
            for minor in (21, 22)
        ),
    ]


def test_a_container_is_told_of_its_partition_not_of_the_card():
    (device,) = cdi_spec(record(), THERE)["devices"]
    told = dict(each.split("=", 1) for each in device["containerEdits"]["env"])
    assert told["ALIQUOT_GPU_0_UUID"] == told["ALIQUOT_DEVICE_UUID"] == UUID
    assert told["ALIQUOT_GPU_0_TYPE"] == "mig"
    assert told["ALIQUOT_GPU_0_MEMORY_BYTES"] == str(20096 << 20)
    assert told["ALIQUOT_GPU_0_MEMORY_FRACTION"] == "1"


def test_a_partition_that_is_gone_is_not_handed_out():
    with pytest.raises(UnknownDeviceError, match=r"no partition 2g.20gb at memory slices 4 to 5"):
        cdi_spec(record(), view(CARD))


def test_admin_access_sees_the_card_only():
    (device,) = cdi_spec(record(admin=True), view(CARD))["devices"]
    assert len(device["containerEdits"]["deviceNodes"]) == 1


def test_the_status_says_which_part_of_which_card():
    patch = status_patch(record(), {CARD.uuid: CARD}, driver=DRIVER, now="2026-01-01T00:00:00Z")
    (device,) = patch["status"]["devices"]
    assert device["data"] == {
        "type": "mig",
        "parentUUID": CARD.uuid,
        "profile": "2g.20gb",
        "placementStart": 4,
        "placementSize": 2,
        "memoryLimit": "hardware",
        "computeLimit": "hardware",
        "product": CARD.product,
    }
    assert device["conditions"][0]["message"].startswith(
        f"partition 2g.20gb at memory slices 4 to 5 of card {CARD.uuid}"
    )
