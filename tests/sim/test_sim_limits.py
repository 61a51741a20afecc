"""Memory limits by cgroup, as documented for R615; no real driver of that branch was at hand."""

import shutil

import pynvml
import pytest

from driver.sim import cgroups, control
from driver.sim.store import Store

MIB = 1 << 20
MAX = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
NEW = "615.71.09"
UID = "00000001-1111-4000-8000-000000000000"


@pytest.fixture
def card(node, tmp_path):
    """(root, handle, cgroup of a pod) of a node with R615."""
    root = node("h100-80gb", 2, driver_version=NEW)
    pod = cgroups.add_pod(tmp_path / "cgroup", UID)
    return root, pynvml.nvmlDeviceGetHandleByIndex(0), pod


def put(handle, path, soft, hard):
    asked = pynvml.c_nvmlSetMemoryLimits_v1_t(str(path).encode(), soft, hard)
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, asked)


def get(handle, path):
    asked = pynvml.c_nvmlGetMemoryLimits_v1_t(str(path).encode(), 7, 7, 7)
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, asked)
    return asked.softLimit, asked.hardLimit, asked.currentUsed


def test_a_limit_is_of_a_card_and_a_cgroup_and_is_cleared(card):
    _, handle, pod = card
    assert get(handle, pod) == (0, MAX, 0)
    put(handle, pod, 5 * MIB, 9 * MIB)
    assert get(handle, pod) == (5 * MIB, 9 * MIB, 0)
    assert get(handle, pod.parent) == (0, MAX, 0)
    assert get(pynvml.nvmlDeviceGetHandleByIndex(1), pod) == (0, MAX, 0)
    put(handle, pod, 4 * MIB, 4 * MIB)
    assert get(handle, pod) == (4 * MIB, 4 * MIB, 0)
    put(handle, pod, 0, MAX)
    assert get(handle, pod) == (0, MAX, 0)


def test_what_is_no_cgroup_of_v2_is_refused(card, tmp_path, refused):
    _, handle, pod = card
    (tmp_path / "v1").mkdir()
    for path in (tmp_path / "v1", pod / "gone"):
        with refused(pynvml.NVML_ERROR_NOT_FOUND):
            put(handle, path, 0, MIB)
        with refused(pynvml.NVML_ERROR_NOT_FOUND):
            get(handle, path)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        put(handle, "kubepods.slice", 0, MIB)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        put(handle, pod, 2 * MIB, MIB)


def test_setting_needs_root_and_neither_works_in_mig_mode(card, refused):
    root, handle, pod = card
    control.set_privileged(root, False)
    with refused(pynvml.NVML_ERROR_NO_PERMISSION):
        put(handle, pod, 0, MIB)
    assert get(handle, pod) == (0, MAX, 0)
    control.set_privileged(root, True)
    control.set_mig_mode(root, 0, on=True)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        put(handle, pod, 0, MIB)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        get(handle, pod)


def test_an_older_driver_has_neither_call(card, refused):
    root, handle, pod = card
    control.set_driver_version(root, "610.10.01")
    with refused(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        put(handle, pod, 0, MIB)
    with refused(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        get(handle, pod)


def test_a_limit_ends_with_its_cgroup_and_with_the_boot(card, refused):
    root, handle, pod = card
    other = cgroups.add_pod(pod.parents[2], UID.replace("1", "2"))
    put(handle, pod, MIB, MIB)
    put(handle, other, MIB, MIB)
    shutil.rmtree(pod)
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        get(handle, pod)
    put(handle, other, 2 * MIB, 2 * MIB)
    assert [each.path for each in Store(root).read().gpu(0).memory_limits] == [str(other)]
    control.reboot(root)
    assert get(handle, other) == (0, MAX, 0)


@pytest.mark.parametrize(
    ("qos", "driver", "below", "wanted"),
    [
        ("guaranteed", "systemd", "", "kubepods.slice/kubepods-pod{_}.slice"),
        (
            "besteffort",
            "systemd",
            "",
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{_}.slice",
        ),
        (
            "burstable",
            "systemd",
            "kubelet",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            "kubelet-kubepods-burstable-pod{_}.slice",
        ),
        ("guaranteed", "cgroupfs", "", "kubepods/pod{}"),
        ("burstable", "cgroupfs", "e2e-x", "e2e-x/kubepods/burstable/pod{}"),
    ],
)
def test_pods_lie_where_the_kubelet_puts_them(tmp_path, qos, driver, below, wanted):
    made = cgroups.add_pod(tmp_path, UID, qos, driver, below)
    wanted = wanted.replace("{_}", UID.replace("-", "_")).replace("{}", UID)
    assert str(made.relative_to(tmp_path)) == wanted
    for folder in (made, *made.relative_to(tmp_path).parents):
        assert (tmp_path / folder / "cgroup.controllers").is_file()
    cgroups.remove_pod(made)
    assert not made.exists()
