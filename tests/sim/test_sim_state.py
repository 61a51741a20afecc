"""Modes, processes, health and what a reboot leaves of them."""

import pynvml
import pytest

from driver.sim import control

RECOVERY = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
MIB = 1 << 20


def boot_id(root):
    return (root / "proc/sys/kernel/random/boot_id").read_text()


def test_memory_shows_what_is_reserved_and_what_processes_use(node):
    root = node("h100-80gb", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    control.set_process(root, 0, 42, 1000 * MIB)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert (second.reserved, second.used) == (480 * MIB, 1000 * MIB)
    assert second.free == second.total - second.reserved - second.used
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert (first.total, first.used, first.free) == (second.total, 1480 * MIB, second.free)


def test_processes_are_listed_by_kind_and_leave(node):
    root = node("l4", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    control.set_process(root, 0, 10, MIB)
    control.set_process(root, 0, 11, None)
    control.set_process(root, 0, 12, MIB, "mps")
    control.set_process(root, 0, 13, MIB, "graphics")
    control.set_process(root, 0, 10, 2 * MIB)
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert [(p.pid, p.usedGpuMemory) for p in found] == [(11, None), (10, 2 * MIB)]
    assert found[0].gpuInstanceId == 0xFFFFFFFF
    assert [p.pid for p in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)] == [12]
    assert [p.pid for p in pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)] == [13]
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 100
    control.clear_processes(root, 0)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0


def test_only_the_current_link_generation_follows_the_load(node):
    root = node("l4", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle) == 1
    control.set_process(root, 0, 10, MIB)
    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle) == 4
    assert pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) == 4
    assert pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle) == 16


def test_the_recovery_action_is_read_as_a_field(node):
    root = node(count=2)
    control.set_recovery_action(root, 1, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    for index, action in ((0, 0), (1, 1)):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        known, unknown = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY, 300])
        assert (known.nvmlReturn, known.value.uiVal) == (0, action)
        assert known.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        assert unknown.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_ecc_counts_by_kind_and_lifetime(node):
    root = node("a100-40gb", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetEccMode(handle) == [1, 1]
    control.set_ecc_errors(root, 0, corrected=5, uncorrected=2)
    control.reboot(root)
    control.set_ecc_errors(root, 0, uncorrected=1)
    corrected, uncorrected = 0, 1
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, corrected, volatile) == 0
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile) == 1
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, corrected, aggregate) == 5
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, aggregate) == 3
    dram = pynvml.NVML_MEMORY_LOCATION_DRAM
    count = pynvml.nvmlDeviceGetMemoryErrorCounter
    assert count(handle, uncorrected, aggregate, dram) == 3
    assert count(handle, uncorrected, aggregate, pynvml.NVML_MEMORY_LOCATION_SRAM) == 0


def test_row_remapping_replaces_page_retirement_from_ampere_on(node, refused):
    root = node("a30", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    control.set_remapped_rows(root, 0, uncorrected=2, pending=True, failure=True)
    assert pynvml.nvmlDeviceGetRemappedRows(handle) == (0, 2, 1, 1)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetRetiredPages(handle, 0)
    control.reset(root, 0)
    assert pynvml.nvmlDeviceGetRemappedRows(handle) == (0, 2, 0, 1)


def test_page_retirement_before_ampere(node, refused):
    node("t4", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetRetiredPages(handle, 1) == []
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) == 0
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetRemappedRows(handle)


def test_compute_mode_is_set_and_not_exclusive_in_mig_mode(node, refused):
    node("h100-80gb", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetComputeMode(handle, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    pynvml.nvmlDeviceSetComputeMode(handle, pynvml.NVML_COMPUTEMODE_DEFAULT)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceSetComputeMode(handle, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT


@pytest.mark.parametrize(("profile", "status"), [("h100-80gb", 0), ("a100-40gb", 0), ("b200", 0)])
def test_mig_mode_changes_at_once_on_an_idle_card(node, profile, status):
    node(profile, 2)
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == status
    assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
    assert pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0)) == [0, 0]


@pytest.mark.parametrize(
    ("policy", "status"),
    [("blocked", pynvml.NVML_ERROR_RESET_REQUIRED), ("vm", pynvml.NVML_ERROR_NOT_SUPPORTED)],
)
def test_on_ampere_a_reset_that_cannot_be_leaves_the_mode_pending(node, policy, status):
    root = node("a100-40gb", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    control.set_mig_reset(root, 0, policy)
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == status
    assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 1]
    control.reset(root, 0)
    assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]


@pytest.mark.parametrize(("profile", "mode"), [("a100-40gb", [0, 1]), ("h100-80gb", [0, 0])])
def test_a_process_on_the_card_blocks_mig_mode(node, profile, mode):
    root = node(profile, 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    control.set_process(root, 0, 77, MIB)
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(handle) == mode


def test_placements_with_mig_mode_off_from_hopper_on_only(node, refused):
    node("a100-40gb", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    count = pynvml.c_uint()
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, 19, None, pynvml.byref(count))


def test_an_empty_card_in_mig_mode_has_full_capacity_and_no_instances(node, refused):
    node("a100-40gb", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    capacity = {i: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, i) for i in (19, 20)}
    capacity |= {i: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, i) for i in (15, 14)}
    capacity |= {i: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, i) for i in (9, 5, 0)}
    assert capacity == {19: 7, 20: 1, 15: 4, 14: 3, 9: 2, 5: 1, 0: 1}
    array, count = (pynvml.c_nvmlGpuInstance_t * 7)(), pynvml.c_uint(7)
    pynvml.nvmlDeviceGetGpuInstances(handle, 19, array, pynvml.byref(count))
    assert count.value == 0
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    assert not pynvml.nvmlDeviceIsMigDeviceHandle(handle)


@pytest.mark.parametrize(("profile", "mode"), [("a100-40gb", [1, 1]), ("h100-80gb", [0, 0])])
def test_a_reboot_leaves_what_each_architecture_keeps(node, profile, mode):
    root = node(profile, 2)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    uuid, before = pynvml.nvmlDeviceGetUUID(handle), boot_id(root)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    other = pynvml.nvmlDeviceGetHandleByIndex(1)
    pynvml.nvmlDeviceSetComputeMode(other, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    control.set_process(root, 0, 1, 1)
    control.lose(root, 1)
    control.reboot(root)
    assert boot_id(root) != before
    assert pynvml.nvmlDeviceGetMigMode(handle) == mode
    assert pynvml.nvmlDeviceGetComputeMode(other) == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert pynvml.nvmlDeviceGetUUID(handle) == uuid


def test_a_pending_mode_becomes_current_at_the_reboot_on_ampere(node):
    root = node("a30", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    control.set_mig_reset(root, 0, "blocked")
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    control.reboot(root)
    assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]


def test_a_reboot_may_permute_the_minors_but_not_the_identity(node):
    root = node("h100-80gb", 8)
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    minors = [list(range(8))]
    for _ in range(3):
        control.reboot(root, permute_minors=True)
        minors.append([pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles])
        assert sorted(minors[-1]) == list(range(8))
        assert minors[-1] != minors[-2]
    assert [pynvml.nvmlDeviceGetUUID(handle) for handle in handles] == uuids
