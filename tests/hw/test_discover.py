from dataclasses import replace

import pynvml
import pytest

from driver.errors import NvmlMissingError
from driver.hw.discover import unlisted
from driver.model.gpu import Engines, Fabric, Gpu, MigMode, Nvlink
from driver.model.ids import PciAddress
from driver.model.units import from_mib
from driver.sim import control

UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


def test_a_card_is_described_in_full(node):
    h100 = node("h100-80gb", 2)
    first, second = h100.discover().gpus
    assert replace(first, mig_profiles=()) == Gpu(
        uuid=first.uuid,
        pci=PciAddress("0000:1b:00.0"),
        minor=0,
        product="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        architecture="Hopper",
        compute_capability=(9, 0),
        memory=from_mib(81559),
        reserved=from_mib(480),
        multiprocessors=132,
        engines=Engines(copy=8, decoders=7, encoders=0, jpeg=7, ofa=1),
        mig_mode=MigMode(current=False, pending=False),
        ecc_enabled=True,
        addressing_mode="HMM",
        numa_node=0,
        pcie_root="pci0000:18",
        pcie_generation=5,
        pcie_width=16,
        nvlink=Nvlink(active_links=18, version=(4, 0), switched=True, peers=frozenset()),
        fabric=None,
    )
    assert first.uuid.startswith("GPU-")
    assert (second.pci, second.minor) == ("0000:1c:00.0", 1)
    assert second.uuid != first.uuid


@pytest.mark.parametrize(
    ("profile", "architecture", "multiprocessors", "engines", "mig", "nvlink"),
    [
        ("a30", "Ampere", 56, Engines(4, 4, 0, 1, 1), True, (4, False)),
        ("a100-40gb", "Ampere", 108, Engines(7, 5, 0, 1, 1), True, (12, True)),
        ("a100-80gb", "Ampere", 108, Engines(7, 5, 0, 1, 1), True, (12, True)),
        ("h100-80gb", "Hopper", 132, Engines(8, 7, 0, 7, 1), True, (18, True)),
        ("h200", "Hopper", 132, Engines(8, 7, 0, 7, 1), True, (18, True)),
        ("b200", "Blackwell", 148, Engines(16, 7, 0, 7, 1), True, (18, True)),
        ("l4", "Ada Lovelace", 58, Engines(), False, None),
        ("t4", "Turing", 40, Engines(), False, None),
    ],
)
def test_every_model_is_discovered(
    node, profile, architecture, multiprocessors, engines, mig, nvlink
):
    inventory = node(profile, 3).discover()
    assert (inventory.driver_version, inventory.cuda_driver_version) == ("580.105.08", (13, 0))
    assert inventory.unreadable == ()
    assert len(inventory.gpus) == 3
    gpu = inventory.gpus[0]
    assert gpu.architecture == architecture
    assert gpu.multiprocessors == multiprocessors
    assert gpu.engines == engines
    assert (gpu.mig_mode is not None) == mig
    links = gpu.nvlink and (gpu.nvlink.active_links, gpu.nvlink.switched)
    assert links == nvlink


def test_bridged_cards_name_each_other_and_the_odd_one_has_no_link(node):
    first, second, third = node("a30", 3).discover().gpus
    assert first.nvlink.peers == {second.pci}
    assert second.nvlink.peers == {first.pci}
    assert third.nvlink is None


def test_links_that_are_down_do_not_count(node):
    a100 = node("a100-40gb", 1)
    control.set_link(a100.root, 0, 3, active=False)
    assert a100.discover().gpus[0].nvlink.active_links == 11


def test_a_link_that_is_not_wired_does_not_hide_the_next(node):
    a100 = node("a100-40gb", 1)
    a100.inject("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_NOT_SUPPORTED, count=2)
    assert a100.discover().gpus[0].nvlink.active_links == 10


def test_links_of_unknown_version_still_count(node):
    a30 = node("a30", 2)
    a30.inject("nvmlDeviceGetNvLinkVersion", UNKNOWN, count=None, gpu=0)
    first, second = a30.discover().gpus
    assert (first.nvlink.active_links, first.nvlink.version) == (4, None)
    assert second.nvlink.version == (3, 1)


def test_a_multi_node_fabric_is_told_once_joined(node):
    joined = node("h100-80gb", 2, fabric=True).discover().gpus
    assert joined[0].fabric == joined[1].fabric
    assert isinstance(joined[0].fabric, Fabric)
    assert len(joined[0].fabric.cluster_uuid) == 36


def test_cards_are_sorted_by_pci_address_over_domains(node):
    addresses = [gpu.pci for gpu in node("t4", 40).discover().gpus]
    assert addresses == sorted(addresses)
    assert addresses[-1].startswith("0002:")


@pytest.mark.parametrize(
    ("call", "field", "value"),
    [
        ("nvmlDeviceGetBrand", "brand", "Unknown"),
        ("nvmlDeviceGetArchitecture", "architecture", "Unknown"),
        ("nvmlDeviceGetNumGpuCores", "multiprocessors", None),
        ("nvmlDeviceGetGpuInstanceProfileInfo", "engines", Engines()),
        ("nvmlDeviceGetMigMode", "mig_mode", None),
        ("nvmlDeviceGetEccMode", "ecc_enabled", None),
        ("nvmlDeviceGetAddressingMode", "addressing_mode", None),
        ("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_generation", None),
        ("nvmlDeviceGetMaxPcieLinkWidth", "pcie_width", None),
        ("nvmlDeviceGetNvLinkState", "nvlink", None),
        ("nvmlDeviceGetGpuFabricInfoV", "fabric", None),
    ],
)
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(pynvml.NVML_ERROR_NOT_SUPPORTED, id="not supported"),
        pytest.param(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, id="function not found"),
        pytest.param(pynvml.NVML_ERROR_NO_PERMISSION, id="no permission"),
        pytest.param(UNKNOWN, id="unknown"),
    ],
)
def test_what_one_card_does_not_tell_is_none_for_that_card_alone(node, call, field, value, code):
    h100 = node("h100-80gb", 2, fabric=True)
    before = h100.discover().gpus
    h100.inject(call, code, count=None, gpu=0)
    inventory = h100.discover()
    assert getattr(inventory.gpus[0], field) == value
    assert inventory.gpus[1] == before[1]
    assert inventory.unreadable == ()


@pytest.mark.parametrize("call", ["GetNvLinkRemoteDeviceType", "GetNvLinkRemotePciInfo"])
def test_links_whose_other_end_is_not_told_still_count(node, call):
    a30 = node("a30", 2)
    a30.inject(f"nvmlDevice{call}", UNKNOWN, count=None)
    nvlink = a30.discover().gpus[0].nvlink
    assert nvlink == Nvlink(active_links=4, version=(3, 1), switched=False, peers=frozenset())


def test_a_card_that_shares_the_hosts_memory_has_zero_of_its_own(node):
    gb10 = node()
    gb10.inject("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_NOT_SUPPORTED, count=None, gpu=0)
    first, second = gb10.discover().gpus
    assert (first.memory, first.reserved) == (0, 0)
    assert second.memory == from_mib(81559)


def test_a_library_without_versioned_structs_tells_what_it_has(node):
    old = node()
    for symbol in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuInstanceProfileInfoV"):
        old.inject(symbol, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, count=None)
    gpu = old.discover().gpus[0]
    assert (gpu.memory, gpu.reserved) == (from_mib(81559), 0)
    assert gpu.engines == Engines(copy=8, decoders=7, encoders=0, jpeg=7, ofa=1)


def test_an_older_driver_tells_less(node):
    gpu = node(driver_version="535.161.08", fabric=True).discover().gpus[0]
    assert gpu.addressing_mode is None
    assert gpu.fabric is None
    assert gpu.multiprocessors == 132


def test_a_lost_card_hides_no_other_and_keeps_its_place(node):
    h100 = node("h100-80gb", 4)
    control.lose(h100.root, 2)
    inventory = h100.discover()
    assert [gpu.minor for gpu in inventory.gpus] == [0, 1, 3]
    (lost,) = inventory.unreadable
    assert (lost.index, lost.pci) == (2, "0000:3b:00.0")
    assert "GPU_IS_LOST (15)" in lost.problem


def test_of_two_lost_cards_neither_address_is_guessed(node):
    h100 = node("h100-80gb", 4)
    control.lose(h100.root, 0)
    control.lose(h100.root, 2)
    inventory = h100.discover()
    assert [(card.index, card.pci) for card in inventory.unreadable] == [(0, None), (2, None)]
    assert unlisted(inventory, h100.sysfs) == ()


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetName",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMemoryInfo",
    ],
)
def test_a_card_without_identity_or_memory_is_unreadable_and_says_why(node, call):
    h100 = node()
    h100.inject(call, UNKNOWN, count=None, gpu=1)
    inventory = h100.discover()
    assert [gpu.minor for gpu in inventory.gpus] == [0]
    (card,) = inventory.unreadable
    assert (card.index, card.pci) == (1, "0000:1c:00.0")
    assert call in card.problem
    assert "UNKNOWN (999)" in card.problem


def test_a_card_lost_half_way_is_unreadable(node):
    h100 = node()
    h100.inject("nvmlDeviceGetEccMode", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=0)
    inventory = h100.discover()
    assert [card.index for card in inventory.unreadable] == [0]
    assert [gpu.minor for gpu in inventory.gpus] == [1]


def test_a_library_that_goes_away_is_no_empty_node(node):
    h100 = node()
    h100.inject("nvmlDeviceGetUUID", pynvml.NVML_ERROR_UNINITIALIZED, gpu=1)
    with pytest.raises(NvmlMissingError):
        h100.discover()


def test_cards_on_the_bus_that_nvml_does_not_list_are_told(node):
    h100 = node()
    for bdf, driver in {"0000:e1:00.0": "vfio-pci", "0000:e2:00.0": "nvidia"}.items():
        folder = h100.root / "sys/bus/pci/devices" / bdf
        folder.mkdir()
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
        (h100.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
        (folder / "driver").symlink_to(h100.root / "sys/bus/pci/drivers" / driver)
    assert unlisted(h100.discover(), h100.sysfs) == ("0000:e2:00.0",)


def test_a_healthy_node_has_no_unlisted_card(node):
    h100 = node()
    assert unlisted(h100.discover(), h100.sysfs) == ()


def test_profiles_of_a_library_that_never_ends_them_are_bounded(node):
    h100 = node()
    h100.inject("nvmlDeviceGetGpuInstanceProfileInfoV", 0, count=None)
    h100.inject("nvmlDeviceGetNvLinkState", 0, count=None)
    gpu = h100.discover().gpus[0]
    assert gpu.engines == Engines(0, 0, 0, 0, 0)
    assert gpu.nvlink is None
