"""Errors of the simulated library, as pynvml raises them, and the ways to cause them."""

import os
import subprocess
import sys

import pynvml
import pytest

from driver.sim import control, seam, setup

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def elsewhere(root, code):
    """Run Python in another process that uses the same node; returns what it printed."""
    prelude = (
        "import sys, pathlib, pynvml\nfrom driver.sim import control, seam\n"
        "root = pathlib.Path(sys.argv[1])\nseam.install(root)\npynvml.nvmlInit()\n"
        "gpu = pynvml.nvmlDeviceGetHandleByIndex\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + code, str(root)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": REPOSITORY},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_lost_card_is_counted_and_leaves_the_others_alone(node, refused):
    root = node(count=3)
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(3)]
    uuid = pynvml.nvmlDeviceGetUUID(handles[1])
    bus_id = pynvml.nvmlDeviceGetPciInfo(handles[1]).busId
    control.lose(root, 1)
    assert pynvml.nvmlDeviceGetCount() == 3
    for call in (
        lambda: pynvml.nvmlDeviceGetUUID(handles[1]),
        lambda: pynvml.nvmlDeviceGetMigMode(handles[1]),
        lambda: pynvml.nvmlDeviceGetHandleByIndex(1),
        lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid),
        lambda: pynvml.nvmlDeviceGetHandleByPciBusId(bus_id),
    ):
        with refused(pynvml.NVML_ERROR_GPU_IS_LOST):
            call()
    assert pynvml.nvmlDeviceGetMinorNumber(handles[0]) == 0
    assert pynvml.nvmlDeviceGetMinorNumber(handles[2]) == 2
    control.restore(root, 1)
    assert pynvml.nvmlDeviceGetUUID(handles[1]) == uuid


def test_another_process_sees_each_change_at_its_next_call(node):
    root = node()
    control.set_process(root, 0, 4711, 1 << 30)
    control.set_recovery_action(root, 1, 2)
    assert elsewhere(
        root, "print(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))[0].pid)"
    ) == ("4711")
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT
    elsewhere(root, "pynvml.nvmlDeviceSetComputeMode(gpu(1), 3); control.lose(root, 0)")
    assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(0)


def test_both_processes_see_the_same_cards(node):
    root = node("a30", 4, seed=9)
    here = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(4)]
    there = elsewhere(root, "print(*[pynvml.nvmlDeviceGetUUID(gpu(i)) for i in range(4)])")
    assert there.split() == here


def test_concurrent_changes_from_processes_are_all_kept(node):
    root = node(count=8)
    code = "import sys\nfor i in range(50): control.set_process(root, int({0}), 100 + i, 1)"
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import pathlib, sys\nfrom driver.sim import control\n"
                "root = pathlib.Path(sys.argv[1])\n" + code.format(card),
                str(root),
            ],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": REPOSITORY},
        )
        for card in range(3)
    ]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    for card in range(3):
        handle = pynvml.nvmlDeviceGetHandleByIndex(card)
        pids = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        assert sorted(pids) == list(range(100, 150))


def test_a_fault_fires_after_its_skips_and_as_often_as_counted(node, refused):
    root = node()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    control.inject(root, "nvmlDeviceGetUUID", 999, count=2, skip=1)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    for _ in range(2):
        with refused(999):
            pynvml.nvmlDeviceGetUUID(handle)
    assert pynvml.nvmlDeviceGetUUID(handle) == uuid


def test_a_fault_for_one_card_spares_the_others_and_stays_until_cleared(node, refused):
    root = node()
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    control.inject(root, "nvmlDeviceGetMemoryInfo", 999, count=None, gpu=1)
    for _ in range(3):
        assert pynvml.nvmlDeviceGetMemoryInfo(first).total
        with refused(999):
            pynvml.nvmlDeviceGetMemoryInfo(second)
        with refused(999):  # the name covers both versions of the call
            pynvml.nvmlDeviceGetMemoryInfo(second, version=pynvml.nvmlMemory_v2)
    control.clear_faults(root)
    assert pynvml.nvmlDeviceGetMemoryInfo(second).total


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetCount"]
)
def test_faults_take_pynvml_names_and_c_symbols(node, refused, call):
    root = node()
    control.inject(root, call, pynvml.NVML_ERROR_UNKNOWN)
    with refused(pynvml.NVML_ERROR_UNKNOWN):
        if "Count" in call:
            pynvml.nvmlDeviceGetCount()
        else:
            pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetHandleByIndex(0)


def test_a_fault_of_init_is_raised_by_init(node, refused):
    root = node()
    control.inject(root, "nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with refused(pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
        pynvml.nvmlInit()
    pynvml.nvmlInit()


def test_a_fault_of_an_unknown_call_is_refused(node):
    with pytest.raises(ValueError, match="nvmlDeviceGetNoSuchThing"):
        control.inject(node(), "nvmlDeviceGetNoSuchThing", 999)


def test_an_unknown_card_is_refused(node):
    with pytest.raises(IndexError, match="cards 0 to 1, asked for 2"):
        control.lose(node(count=2), 2)


def test_latency_delays_a_call_and_ends_with_zero(node, monkeypatch):
    root = node()
    slept: list[float] = []
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    monkeypatch.setattr("time.sleep", slept.append)
    control.set_latency(root, "nvmlDeviceGetName", 1.5)
    assert pynvml.nvmlDeviceGetName(handle)
    assert pynvml.nvmlDeviceGetUUID(handle)
    control.set_latency(root, "nvmlDeviceGetName", 0)
    assert pynvml.nvmlDeviceGetName(handle)
    assert slept == [1.5]


def test_an_old_driver_lacks_the_calls_its_library_lacks(node, refused):
    root = node("h200", 1, fabric=True)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    fabric = pynvml.c_nvmlGpuFabricInfoV_t()
    calls = (
        lambda: pynvml.nvmlDeviceGetAddressingMode(handle),
        lambda: pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(fabric)),
        lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, 19),
    )
    for call in calls:
        call()
    control.set_driver_version(root, "535.261.03")
    assert pynvml.nvmlSystemGetDriverVersion() == "535.261.03"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 12020
    for call in (*calls, lambda: pynvml.nvmlDeviceGetNumaNodeId(handle)):
        with refused(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            call()
    action = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    assert action[0].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_call_that_is_not_simulated_is_not_found(node, refused):
    node()
    with refused(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(0))


@pytest.mark.parametrize(
    ("state", "error", "missing"),
    [
        (
            "missing",
            pynvml.NVMLError_LibraryNotFound,
            "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        ),
        ("not_loaded", pynvml.NVMLError_DriverNotLoaded, "proc/driver/nvidia/version"),
    ],
)
def test_init_without_library_or_driver_fails_until_it_is_there(tmp_path, state, error, missing):
    root = tmp_path / "node"
    setup.create(root, "l4", 1)
    control.set_library(root, state)
    seam.install(root)
    try:
        assert not (root / missing).exists()
        with pytest.raises(error):
            pynvml.nvmlInit()
        control.set_library(root, "ok")
        assert (root / missing).read_text()
        pynvml.nvmlInit()
    finally:
        seam.uninstall()


def test_init_counts_references_and_the_last_shutdown_invalidates_handles(node, refused):
    node()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetUUID(handle)
    pynvml.nvmlShutdown()
    for call in (pynvml.nvmlDeviceGetCount, pynvml.nvmlShutdown):
        with refused(pynvml.NVML_ERROR_UNINITIALIZED):
            call()
    pynvml.nvmlInit()
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlDeviceGetUUID(handle)


def test_without_an_installed_simulator_pynvml_is_as_it_was(node, refused):
    node()
    seam.uninstall()
    with refused(pynvml.NVML_ERROR_UNINITIALIZED):
        pynvml.nvmlDeviceGetCount()


def test_wrong_arguments_get_the_codes_of_nvml(node, refused):
    node(count=2)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlDeviceGetHandleByIndex(2)
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        pynvml.nvmlDeviceGetHandleByPciBusId("0000:99:00.0")
    with refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=0x01000028)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlDeviceSetComputeMode(handle, 7)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19)  # MIG mode is off


def test_a_missing_byref_is_an_error_instead_of_a_crash(node):
    node("h200", 1, fabric=True)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(TypeError, match="byref"):
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.c_nvmlGpuFabricInfoV_t())


def test_changing_calls_need_rights(node, refused):
    root = node("h100-80gb", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    control.set_privileged(root, False)
    with refused(pynvml.NVML_ERROR_NO_PERMISSION):
        pynvml.nvmlDeviceSetMigMode(handle, 1)
    with refused(pynvml.NVML_ERROR_NO_PERMISSION):
        pynvml.nvmlDeviceSetComputeMode(handle, 3)
    assert pynvml.nvmlDeviceGetComputeMode(handle) == 0


def test_error_texts_come_from_the_library(node):
    node()
    assert pynvml.nvmlErrorString(19) == "In use by another client"
    assert str(pynvml.NVMLError(23)) == "Insufficient Resources"


def test_a_removed_node_answers_unknown_instead_of_breaking_the_process(node, refused):
    root = node()
    (root / "sim" / "state.json").unlink()
    with refused(pynvml.NVML_ERROR_UNKNOWN):
        pynvml.nvmlDeviceGetCount()
