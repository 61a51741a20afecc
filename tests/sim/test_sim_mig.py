"""Partitions: creating and destroying GPU and compute instances, as NVML does."""

import random
from ctypes import byref, c_uint
from itertools import pairwise
from typing import Any

import pynvml
import pytest

from driver.sim import control, files

INSUFFICIENT = pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
IN_USE = pynvml.NVML_ERROR_IN_USE
# profile ids of 7-slice cards
ONE, ONE_ME, ONE_DOUBLE, TWO, THREE, FOUR, SEVEN = 19, 20, 15, 14, 9, 5, 0
SIZES = {ONE: 1, ONE_ME: 1, ONE_DOUBLE: 2, TWO: 2, THREE: 4, FOUR: 4, SEVEN: 8}
ENUMS = {ONE: 0, ONE_ME: 7, ONE_DOUBLE: 9, TWO: 1, THREE: 2, FOUR: 3, SEVEN: 4}


@pytest.fixture
def card(node):
    """A card in MIG mode: ``card("a100-40gb")`` returns (root, handle)."""

    def make(profile="a100-40gb"):
        root = node(profile, 2)
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceSetMigMode(handle, 1) == 0
        return root, handle

    return make


def create(handle, profile_id, start):
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, SIZES[profile_id])
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, byref(placement))


def with_compute(handle, profile_id, start):
    """A GPU instance with a compute instance over all of it; returns both."""
    part = create(handle, profile_id, start)
    slices = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, profile_id).sliceCount
    profile = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices]
    return part, pynvml.nvmlGpuInstanceCreateComputeInstance(part, profile)


def starts(handle, *profile_ids):
    """Where the driver puts instances that are created without a placement."""
    made = [pynvml.nvmlDeviceCreateGpuInstance(handle, profile_id) for profile_id in profile_ids]
    return [pynvml.nvmlGpuInstanceGetInfo(part).placement.start for part in made]


def instances(handle, profile_id):
    array, count = (pynvml.c_nvmlGpuInstance_t * 7)(), c_uint(7)
    pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, array, byref(count))
    return [pynvml.nvmlGpuInstanceGetInfo(array[n]).id for n in range(count.value)]


def mig_devices(handle):
    """UUIDs of the card's MIG devices by index; the index may have holes."""
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError_NotFound:
            continue
        found[index] = pynvml.nvmlDeviceGetUUID(device)
    return found


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((ONE, TWO, FOUR), [6, 4, 0]),
        ((THREE, ONE, TWO, ONE), [4, 0, 2, 1]),
        ((TWO, ONE, ONE, ONE, ONE, ONE), [4, 6, 0, 1, 2, 3]),
        ((ONE, ONE, TWO), [6, 4, 0]),
    ],
)
def test_without_a_placement_the_driver_chooses_as_the_guide_shows(card, asked, expected):
    _, handle = card()
    assert starts(handle, *asked) == expected


def test_a_choice_that_broke_up_the_card_leaves_no_room(card, refused):
    _, handle = card()
    starts(handle, ONE, ONE, TWO)
    with refused(INSUFFICIENT):
        pynvml.nvmlDeviceCreateGpuInstance(handle, THREE)


def test_a_taken_placement_is_insufficient_resources_also_for_the_same_profile(card, refused):
    _, handle = card()
    create(handle, THREE, 0)
    for profile_id, start in ((THREE, 0), (ONE, 3), (FOUR, 0), (SEVEN, 0)):
        with refused(INSUFFICIENT):
            create(handle, profile_id, start)
    create(handle, ONE, 4)


def test_a_placement_that_the_profile_does_not_have_is_an_invalid_argument(card, refused):
    _, handle = card()
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        create(handle, THREE, 2)


def test_memory_slices_can_run_out_before_gpu_slices(card, refused):
    _, handle = card("h100-80gb")
    for start in (0, 2, 4, 6):
        create(handle, ONE_DOUBLE, start)
    for profile_id, start in ((ONE_DOUBLE, 0), (ONE, 0)):
        with refused(INSUFFICIENT):
            create(handle, profile_id, start)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, ONE) == 0


def test_only_one_instance_has_the_media_extensions(card, refused):
    _, handle = card()
    create(handle, ONE_ME, 0)
    with refused(INSUFFICIENT):
        create(handle, ONE_ME, 1)
    create(handle, ONE, 1)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, ONE_ME) == 0
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, ONE) == 5


@pytest.mark.parametrize("profile", ["a100-40gb", "h100-80gb", "h200", "b200"])
def test_seven_small_and_three_and_four_fit_on_every_seven_slice_card(card, profile):
    _, handle = card(profile)
    parts = [create(handle, ONE, start) for start in range(7)]
    for part in parts:
        pynvml.nvmlGpuInstanceDestroy(part)
    create(handle, FOUR, 0)
    create(handle, THREE, 4)


def test_ids_are_heap_numbers_and_reused(card):
    _, handle = card()
    made = [
        pynvml.nvmlGpuInstanceGetInfo(create(handle, *place)).id
        for place in ((THREE, 4), (TWO, 0), (ONE, 3))
    ]
    assert made == [2, 3, 10]
    assert instances(handle, TWO) == [3]
    part = pynvml.nvmlDeviceGetGpuInstanceById(handle, 3)
    info = pynvml.nvmlGpuInstanceGetInfo(part)
    assert (info.profileId, info.placement.start, info.placement.size) == (TWO, 0, 2)
    pynvml.nvmlGpuInstanceDestroy(part)
    assert pynvml.nvmlGpuInstanceGetInfo(create(handle, ONE_DOUBLE, 0)).id == 3


def test_a_four_slice_card_has_its_own_ids(node):
    node("a30", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    made = [pynvml.nvmlDeviceCreateGpuInstance(handle, 14) for _ in range(4)]
    infos = [pynvml.nvmlGpuInstanceGetInfo(part) for part in made]
    assert sorted(info.id for info in infos) == [3, 4, 5, 6]
    assert sorted(info.placement.start for info in infos) == [0, 1, 2, 3]


def test_a_gpu_instance_without_a_compute_instance_is_no_device(card):
    _, handle = card()
    part = create(handle, TWO, 0)
    assert mig_devices(handle) == {}
    assert instances(handle, TWO) == [3]
    pynvml.nvmlGpuInstanceCreateComputeInstance(part, 1)
    assert list(mig_devices(handle)) == [0]


def test_destruction_goes_from_inside_out(card, refused):
    _, handle = card()
    part, compute = with_compute(handle, TWO, 0)
    with refused(IN_USE):
        pynvml.nvmlGpuInstanceDestroy(part)
    pynvml.nvmlComputeInstanceDestroy(compute)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(part)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlGpuInstanceGetInfo(part)
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        pynvml.nvmlDeviceGetGpuInstanceById(handle, 3)


def test_processes_and_injected_holders_block_destruction(card, refused):
    root, handle = card()
    part, compute = with_compute(handle, TWO, 0)
    control.set_process(root, 0, 99, 5, instance=(3, 0))
    with refused(IN_USE):
        pynvml.nvmlComputeInstanceDestroy(compute)
    control.clear_processes(root, 0)
    pynvml.nvmlComputeInstanceDestroy(compute)
    control.inject(root, "nvmlGpuInstanceDestroy", IN_USE)  # a holder that nobody sees
    with refused(IN_USE):
        pynvml.nvmlGpuInstanceDestroy(part)
    assert instances(handle, TWO) == [3]
    pynvml.nvmlGpuInstanceDestroy(part)
    assert instances(handle, TWO) == []


def test_indexes_keep_holes_and_ids_of_compute_instances_start_at_zero(card):
    _, handle = card()
    made = [with_compute(handle, ONE, start) for start in (0, 1, 2)]
    before = mig_devices(handle)
    assert list(before) == [0, 1, 2]
    assert [pynvml.nvmlComputeInstanceGetInfo(compute).id for _, compute in made] == [0, 0, 0]
    pynvml.nvmlComputeInstanceDestroy(made[1][1])
    assert mig_devices(handle) == {0: before[0], 2: before[2]}


@pytest.mark.parametrize(("policy", "same"), [("stable", True), ("fresh", False)])
def test_a_mig_device_made_again_has_the_uuid_of_the_policy(card, policy, same):
    root, handle = card()
    control.set_mig_uuids(root, policy)
    uuids = []
    for _ in range(2):
        part, compute = with_compute(handle, ONE, 0)
        uuids.append(mig_devices(handle)[0])
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(part)
    assert (uuids[0] == uuids[1]) == same
    old = f"MIG-{pynvml.nvmlDeviceGetUUID(handle)}/7/0"  # the form before R470
    with_compute(handle, ONE, 0)
    assert pynvml.nvmlDeviceGetGpuInstanceId(pynvml.nvmlDeviceGetHandleByUUID(old)) == 7
    for uuid in uuids:
        assert uuid.startswith("MIG-")
        assert uuid[len("MIG-") + 14] == "5"  # version nibble of every sample


def test_a_mig_device_tells_its_place_and_its_parent(card, refused):
    _, handle = card("h100-80gb")
    with_compute(handle, THREE, 4)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert pynvml.nvmlDeviceGetGpuInstanceId(device) == 2
    assert pynvml.nvmlDeviceGetComputeInstanceId(device) == 0
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(handle)
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device))
    assert pynvml.nvmlDeviceGetGpuInstanceId(by_uuid) == 2
    attributes = pynvml.nvmlDeviceGetAttributes(device)
    assert (attributes.multiprocessorCount, attributes.sharedDecoderCount) == (60, 3)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device).total >> 20
    assert memory == attributes.memorySizeMB
    assert memory > 40448  # not the number of the profile
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetMinorNumber(device)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetAttributes(handle)


def test_processes_of_a_mig_device_are_its_own(card):
    root, handle = card()
    with_compute(handle, ONE, 0)
    with_compute(handle, ONE, 1)
    control.set_process(root, 0, 50, 1 << 20, instance=(8, 0))
    devices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index) for index in (0, 1)]
    listed = [pynvml.nvmlDeviceGetComputeRunningProcesses(device) for device in devices]
    assert [[p.pid for p in processes] for processes in listed] == [[], [50]]
    (seen,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert (seen.gpuInstanceId, seen.computeInstanceId) == (8, 0)


def test_compute_instances_share_one_gpu_instance(card, refused):
    _, handle = card()
    part = create(handle, THREE, 0)
    one, two, three = (
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(part, enum, 0) for enum in range(3)
    )
    assert [one.name, two.name, three.name] == ["1c.3g.20gb", "2c.3g.20gb", "3g.20gb"]
    assert [p.multiprocessorCount for p in (one, two, three)] == [14, 28, 42]
    assert [p.instanceCount for p in (one, two, three)] == [3, 1, 1]
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(part, 3, 0)
    pynvml.nvmlGpuInstanceCreateComputeInstance(part, two.id)
    assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(part, one.id) == 1
    with refused(INSUFFICIENT):
        pynvml.nvmlGpuInstanceCreateComputeInstance(part, three.id)
    last = pynvml.nvmlGpuInstanceCreateComputeInstance(part, one.id)
    info = pynvml.nvmlComputeInstanceGetInfo(last)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (1, 0, 2, 1)
    array, count = (pynvml.c_nvmlComputeInstance_t * 3)(), c_uint(3)
    pynvml.nvmlGpuInstanceGetComputeInstances(part, one.id, array, byref(count))
    assert count.value == 1
    assert pynvml.nvmlComputeInstanceGetInfo(array[0]).id == 1
    assert (
        pynvml.nvmlComputeInstanceGetInfo(
            pynvml.nvmlGpuInstanceGetComputeInstanceById(part, 0)
        ).profileId
        == two.id
    )


def test_compute_placements_do_not_overlap(card):
    _, handle = card()
    part, count = create(handle, SEVEN, 0), c_uint()
    call = pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements
    call(part, 1, None, byref(count))
    array = (pynvml.c_nvmlComputeInstancePlacement_t * count.value)()
    call(part, 1, array, byref(count))
    places = [(place.start, place.size) for place in array]
    assert len(places) == 3
    assert all(a + size <= b for (a, size), (b, _) in pairwise(places))


def test_capability_files_exist_for_created_instances_only(card):
    root, handle = card()
    folder = root / "proc/driver/nvidia/capabilities/gpu0/mig/gi3"
    assert not folder.exists()
    part, compute = with_compute(handle, TWO, 0)
    minor = files.mig_minor(0, 3)
    assert f"DeviceFileMinor: {minor}\n" in (folder / "access").read_text()
    assert f"DeviceFileMinor: {minor + 1}\n" in (folder / "ci0/access").read_text()
    pynvml.nvmlComputeInstanceDestroy(compute)
    assert not (folder / "ci0").exists()
    pynvml.nvmlGpuInstanceDestroy(part)
    assert not folder.exists()


@pytest.mark.parametrize("profile", ["a100-40gb", "h100-80gb"])
def test_a_reboot_leaves_no_instance_anywhere(card, profile, refused):
    root, handle = card(profile)
    with_compute(handle, TWO, 0)
    control.reboot(root)
    assert not (root / "proc/driver/nvidia/capabilities/gpu0").exists()
    if profile == "h100-80gb":  # MIG mode itself is gone too
        with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
            instances(handle, TWO)
        pynvml.nvmlDeviceSetMigMode(handle, 1)
    assert instances(handle, TWO) == []
    assert mig_devices(handle) == {}


def test_mig_mode_is_not_left_while_there_are_instances(card):
    _, handle = card("h100-80gb")
    part = create(handle, TWO, 0)
    assert pynvml.nvmlDeviceSetMigMode(handle, 0) == IN_USE
    assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]
    pynvml.nvmlGpuInstanceDestroy(part)
    assert pynvml.nvmlDeviceSetMigMode(handle, 0) == 0
    assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 0]


def test_without_mig_mode_or_rights_nothing_is_created(node, refused):
    root = node("h100-80gb", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        create(handle, ONE, 0)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    control.set_privileged(root, False)
    with refused(pynvml.NVML_ERROR_NO_PERMISSION):
        create(handle, ONE, 0)


def test_a_placement_without_byref_is_an_error_instead_of_a_crash(card):
    _, handle = card()
    placement = pynvml.c_nvmlGpuInstancePlacement_t(0, 1)
    with pytest.raises(TypeError, match="byref"):
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, ONE, placement)
    assert instances(handle, ONE) == []


def test_an_enum_in_place_of_an_id_names_another_profile(card):
    _, handle = card()
    part = pynvml.nvmlDeviceCreateGpuInstance(handle, ENUMS[ONE_DOUBLE])
    assert pynvml.nvmlGpuInstanceGetInfo(part).profileId == THREE


def test_any_sequence_keeps_the_limits_and_the_remaining_capacity_is_true(card, refused):
    _, handle = card("h100-80gb")
    generator = random.Random(20)  # noqa: S311 - a reproducible walk
    alive: list[Any] = []
    for _ in range(300):
        if alive and generator.random() < 0.4:
            pynvml.nvmlGpuInstanceDestroy(alive.pop(generator.randrange(len(alive))))
            continue
        wanted = generator.choice(list(SIZES))
        left = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, wanted)
        if left == 0:
            with refused(INSUFFICIENT):
                pynvml.nvmlDeviceCreateGpuInstance(handle, wanted)
            continue
        alive.append(pynvml.nvmlDeviceCreateGpuInstance(handle, wanted))
        infos = [pynvml.nvmlGpuInstanceGetInfo(part) for part in alive]
        taken = [
            n
            for i in infos
            for n in range(i.placement.start, i.placement.start + i.placement.size)
        ]
        assert len(taken) == len(set(taken))
        slices = [
            pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, i.profileId).sliceCount
            for i in infos
        ]
        assert sum(slices) <= 7
        assert len({i.id for i in infos}) == len(infos)
