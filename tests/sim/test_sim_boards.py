"""What each simulated card says, against the facts in data/boards.json (real boards)."""

import ctypes
import json
import math
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pynvml
import pytest

from driver.sim import control
from driver.sim.profiles import PROFILES, parse_simulate

BOARDS = json.loads((Path(__file__).parent / "data" / "boards.json").read_text())
MIG = [key for key, board in BOARDS.items() if board["rows"]]
MIB = 1 << 20
FIELDS = {
    "id": "id",
    "name": "name",
    "slice_count": "sliceCount",
    "instance_count": "instanceCount",
    "memory_size_mb": "memorySizeMB",
    "multiprocessor_count": "multiprocessorCount",
    "copy_engine_count": "copyEngineCount",
    "decoder_count": "decoderCount",
    "encoder_count": "encoderCount",
    "jpeg_count": "jpegCount",
    "ofa_count": "ofaCount",
    "is_p2p_supported": "isP2pSupported",
}


def value(struct, name):
    found = getattr(struct, name)
    return found.decode() if isinstance(found, bytes) else found


def profile_rows(handle, version=2):
    """All rows by enum, found the way nvml.h says: until INVALID_ARGUMENT."""
    rows = {}
    for enum in range(100):
        try:
            rows[enum] = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum, version)
        except pynvml.NVMLError_NotSupported:
            continue
        except pynvml.NVMLError_InvalidArgument:
            break
    return rows


def placements(handle, profile_id):
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
        handle, profile_id, None, ctypes.byref(count)
    )
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
        handle, profile_id, array, ctypes.byref(count)
    )
    return [(entry.start, entry.size) for entry in array]


def profile_gb(memory_mib, total_mib):
    """The GB figure of a profile name; rounds half up (the reference's formula)."""
    eighths = math.ceil(Decimal(memory_mib) / Decimal(total_mib) * 8)
    total_gib = math.ceil(Decimal(total_mib) / 1024)
    return int((Decimal(eighths) / 8 * total_gib).quantize(Decimal(1), ROUND_HALF_UP))


@pytest.mark.parametrize("key", BOARDS)
def test_identity_and_memory_are_those_of_the_real_board(node, key):
    node(key, 1)
    info = BOARDS[key]["info"]
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    assert pynvml.nvmlDeviceGetName(handle) == info["name"]
    assert pynvml.nvmlDeviceGetArchitecture(handle) == info["nvml_architecture"]
    assert pynvml.nvmlDeviceGetBrand(handle) == info["nvml_brand"]
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    assert f"{major}.{minor}" == info["cuda_compute_capability"]
    assert memory.total == info["memory_total_mib"] * MIB
    assert pci.pciDeviceId == int(info["pci_device_id"], 16)
    if info["memory_reserved_mib"] is not None:
        assert memory.reserved == info["memory_reserved_mib"] * MIB
    if info["pci_subsystem_id"] is not None:
        assert pci.pciSubSystemId == int(info["pci_subsystem_id"], 16)
    if info["addressing_mode"] is not None:
        mode = {"HMM": pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM}[info["addressing_mode"]]
        assert pynvml.nvmlDeviceGetAddressingMode(handle) == mode


@pytest.mark.parametrize("key", BOARDS)
def test_what_the_facts_lack_is_marked_derived(key):
    info, derived = BOARDS[key]["info"], PROFILES[key].derived
    names = {
        "memory_reserved_mib": "reserved_mib",
        "pci_subsystem_id": "pci_subsystem_id",
        "addressing_mode": "addressing_mode",
    }
    for fact, field in names.items():
        assert (info[fact] is None) == (field in derived), field
    for row in BOARDS[key]["rows"]:
        unseen = row["memory_size_mb"] is None
        assert unseen == (f"gi:{row['gi_profile_enum']}" in derived)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("key", MIG)
def test_gpu_instance_profiles_are_those_of_the_real_board(node, key, version):
    node(key, 1, driver_version="595.91.07")
    found = profile_rows(pynvml.nvmlDeviceGetHandleByIndex(0), version)
    assert set(found) == {row["gi_profile_enum"] for row in BOARDS[key]["rows"]}
    for row in BOARDS[key]["rows"]:
        for fact, field in FIELDS.items():
            if row[fact] is not None and hasattr(found[row["gi_profile_enum"]], field):
                assert value(found[row["gi_profile_enum"]], field) == row[fact], (row, field)


@pytest.mark.parametrize("key", MIG)
def test_profiles_read_by_id_are_the_same_rows(node, key):
    node(key, 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for row in profile_rows(handle).values():
        by_id = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, row.id)
        assert bytes(by_id) == bytes(row)


@pytest.mark.parametrize("key", MIG)
def test_placements_are_those_of_the_real_board(node, key):
    node(key, 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(handle, pynvml.NVML_DEVICE_MIG_ENABLE)
    for row in BOARDS[key]["rows"]:
        expected = [(start, row["size"]) for start in row["starts"]]
        assert placements(handle, row["id"]) == expected
        assert max(start + size for start, size in expected) <= BOARDS[key]["memory_slices"]


@pytest.mark.parametrize("key", MIG)
def test_every_profile_name_follows_the_formula_also_where_it_is_derived(node, key):
    node(key, 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    total = pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB
    for row in profile_rows(handle).values():
        stem = f"{row.sliceCount}g.{profile_gb(row.memorySizeMB, total)}gb"
        assert value(row, "name") in {stem, f"{stem}+me"}


@pytest.mark.parametrize("key", MIG)
def test_compute_instance_profiles_are_those_of_the_real_board(key):
    for row in BOARDS[key]["rows"]:
        profile = PROFILES[key].by_enum(row["gi_profile_enum"])
        assert profile is not None
        made = [[c.profile, c.name, c.slices, c.instances] for c in profile.compute_profiles()]
        assert made == row["compute"]


def test_cards_without_mig_say_so_and_end_the_enum_loop(node, refused):
    for key in ("t4", "l4"):
        assert not PROFILES[key].mig_capable
    node("t4", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert profile_rows(handle) == {}
    for call in (pynvml.nvmlDeviceGetMigMode, pynvml.nvmlDeviceGetMaxMigDeviceCount):
        with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
            call(handle)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 18)


@pytest.mark.parametrize(("version", "count"), [("535.261.03", 10), ("580.105.08", 17)])
def test_the_enum_loop_ends_where_the_driver_branch_ends(node, refused, version, count):
    root = node("a100-40gb", 1)
    control.set_driver_version(root, version)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 5)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, count)


@pytest.mark.parametrize(
    ("key", "multiprocessors", "generation"),
    [("a100-40gb", 108, 4), ("h100-80gb", 132, 5), ("l4", 58, 4), ("t4", 40, 3)],
)
def test_cores_and_pcie_tell_multiprocessors_and_link(node, key, multiprocessors, generation):
    node(key, 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    cores = pynvml.nvmlDeviceGetNumGpuCores(handle)
    assert cores / multiprocessors in {64, 128}
    assert pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) == generation
    assert pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle) == 16


def test_the_whole_card_profile_is_never_smaller_than_any_pair_of_others():
    for profile in PROFILES.values():
        for one in profile.gpu_instance_profiles:
            whole = max(profile.gpu_instance_profiles, key=lambda p: p.slices)
            assert one.instances * one.multiprocessors <= whole.multiprocessors
            assert one.instances * one.copy_engines <= whole.copy_engines


@pytest.mark.parametrize(
    ("text", "expected"),
    [("h100-80gb:8", ("h100-80gb", 8)), ("l4", ("l4", 1)), (" t4:512 ", ("t4", 512))],
)
def test_simulate_option_is_parsed(text, expected):
    assert parse_simulate(text) == expected


@pytest.mark.parametrize(
    "text", ["h100-80gb:0", "h100-80gb:513", "l4:", "l4:-1", "l4:2:3", "l4:²"]
)
def test_a_wrong_count_is_refused_with_the_allowed_range(text):
    with pytest.raises(ValueError, match="1 to 512"):
        parse_simulate(text)


def test_an_unknown_profile_is_refused_with_all_known_ones():
    with pytest.raises(ValueError, match="no profile 'h300'") as caught:
        parse_simulate("h300:8")
    for key in PROFILES:
        assert key in str(caught.value)
