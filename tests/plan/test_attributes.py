import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.model.gpu import Engines, Fabric
from driver.model.units import Bytes, binary_quantity, decimal_quantity, from_mib, whole_mib
from driver.plan.attributes import attributes, capacities, semver
from driver.plan.topology import nvlink_groups
from tests.plan.builders import MIB, gpu, inventory, switched, whole

SEMVER = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")


def published(card):
    node = inventory(card)
    return attributes(whole(card), node, nvlink_groups(node))


def test_a_card_tells_all_that_the_design_lists():
    assert published(switched(5, fabric=Fabric("6f1c0f0a-cluster", 3))) == {
        "type": {"string": "gpu"},
        "uuid": {"string": "GPU-00000005-1b7e-4d0a-9c55-2f6a8e0d4b11"},
        "wholeCard": {"bool": True},
        "memoryLimit": {"string": "hardware"},
        "computeLimit": {"string": "hardware"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.105.8"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "migCapable": {"bool": True},
        "eccEnabled": {"bool": True},
        "addressingMode": {"string": "HMM"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:05:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:02"},
        "resource.kubernetes.io/numaNode": {"int": 1},
        "pcieGeneration": {"int": 5},
        "pcieWidth": {"int": 16},
        "nvlinkGroup": {"string": "nvswitch"},
        "nvlinkActiveLinks": {"int": 18},
        "nvlinkVersion": {"version": "4.0.0"},
        "fabricClusterUUID": {"string": "6f1c0f0a-cluster"},
        "fabricCliqueID": {"int": 3},
    }


def test_a_card_tells_its_capacities():
    assert capacities(whole(gpu())) == {
        "memory": {"value": "81559Mi"},
        "multiprocessors": {"value": "132"},
        "copyEngines": {"value": "3"},
        "decoders": {"value": "7"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "7"},
        "ofaEngines": {"value": "1"},
    }


def test_what_the_hardware_does_not_tell_is_left_out():
    silent = gpu(
        brand="",
        memory=Bytes(0),
        multiprocessors=None,
        engines=Engines(),
        mig_mode=None,
        ecc_enabled=None,
        addressing_mode=None,
        numa_node=None,
        pcie_root=None,
        pcie_generation=None,
        pcie_width=None,
    )
    assert published(silent).keys() == {
        "type",
        "uuid",
        "wholeCard",
        "memoryLimit",
        "computeLimit",
        "productName",
        "architecture",
        "cudaComputeCapability",
        "driverVersion",
        "cudaDriverVersion",
        "migCapable",
        "resource.kubernetes.io/pciBusID",
    }
    assert published(silent)["migCapable"] == {"bool": False}
    assert capacities(whole(silent)) == {"memory": {"value": "0"}}


def test_attributes_and_capacities_are_at_most_32():
    card = switched(0, fabric=Fabric("cluster", 0))
    assert len(published(card)) + len(capacities(whole(card))) <= 32


def test_long_texts_are_cut_to_64_bytes_between_characters():
    assert published(gpu(product="x" * 63 + "é"))["productName"] == {"string": "x" * 63}
    assert published(gpu(product="x" * 62 + "é"))["productName"] == {"string": "x" * 62 + "é"}


def test_a_driver_version_without_numbers_is_left_out():
    node = inventory(gpu())
    unknown = type(node)("unknown", node.cuda_driver_version, node.gpus)
    assert "driverVersion" not in attributes(whole(gpu()), unknown, {})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.82.07", "580.82.7"),
        ("570.124.06", "570.124.6"),
        ("535.86", "535.86.0"),
        ("535.161.05.01", "535.161.5"),
        ("615", "615.0.0"),
        ("580.00.00-grid", "580.0.0"),
        ("", None),
    ],
)
def test_versions_become_semantic_versions(text, version):
    assert semver(text) == version


@given(st.text(max_size=100))
def test_any_text_gives_a_valid_version_or_none(text):
    version = semver(text)
    assert version is None or (SEMVER.fullmatch(version) and len(version) <= 64)


@pytest.mark.parametrize(
    ("size", "quantity"),
    [
        (0, "0"),
        (MIB - 1, "0"),
        (MIB, "1Mi"),
        (81_559 * MIB + 5, "81559Mi"),
        (80 << 30, "80Gi"),
        (1 << 50, "1Pi"),
        (1 << 60, "1024Pi"),
    ],
)
def test_memory_is_spelled_as_the_api_server_stores_it(size, quantity):
    assert binary_quantity(Bytes(size)) == quantity


@pytest.mark.parametrize(
    ("count", "quantity"), [(0, "0"), (132, "132"), (1000, "1k"), (1500, "1500"), (10**9, "1G")]
)
def test_counts_are_spelled_as_the_api_server_stores_them(count, quantity):
    assert decimal_quantity(count) == quantity


def test_mebibytes_and_back():
    assert whole_mib(from_mib(4864)) == "4864Mi"
