import pytest

from driver.errors import HardwareError
from driver.hw.readouts import (
    addressing_mode_name,
    cluster_uuid,
    multiprocessors,
    pci_address,
)


@pytest.mark.parametrize(
    ("nvml", "kernel"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:AF:00.4", "10000:af:00.4"),
    ],
)
def test_a_bus_id_is_spelled_as_the_kernel_does(nvml, kernel):
    assert pci_address(nvml) == kernel


@pytest.mark.parametrize("text", ["", "xyz:00:00.0"])
def test_another_form_of_bus_id_is_an_error(text):
    with pytest.raises(HardwareError, match=r"domain:bus:device.function wanted"):
        pci_address(text)


@pytest.mark.parametrize(
    ("cores", "capability", "count"),
    [
        pytest.param(2560, (7, 5), 40, id="T4"),
        pytest.param(6912, (8, 0), 108, id="A100"),
        pytest.param(10752, (8, 6), 84, id="A40"),
        pytest.param(18176, (8, 9), 142, id="L40S"),
        pytest.param(16896, (9, 0), 132, id="H100"),
        pytest.param(18944, (10, 0), 148, id="B200"),
        pytest.param(1000, (9, 0), None, id="not a multiple"),
        pytest.param(1024, (99, 0), None, id="architecture of the future"),
    ],
)
def test_multiprocessors_follow_from_cores_and_architecture(cores, capability, count):
    assert multiprocessors(cores, capability) == count


def test_a_cluster_has_a_uuid_and_a_single_node_none():
    raw = bytes(range(16))
    assert cluster_uuid(raw) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert cluster_uuid(bytes(16)) is None


def test_an_addressing_mode_of_the_future_is_not_named():
    assert [addressing_mode_name(mode) for mode in (0, 1, 2, 3)] == ["None", "HMM", "ATS", None]
