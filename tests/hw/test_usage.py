import pynvml
import pytest

from driver.errors import GpuLostError, HardwareError
from driver.hw.usage import CardUsage, pod_of_cgroups
from driver.model.units import Bytes
from driver.model.usage import ProcessUse
from driver.sim import control

MIB = 1 << 20
POD = "0a1b2c3d-1111-2222-3333-444455556666"
UNDERSCORED = POD.replace("-", "_")


@pytest.fixture
def h100(node):
    return node("h100-80gb", 2)


def uses(node):
    return CardUsage(node.nvml, node.root).uses(node.uuids()[0])


def test_processes_are_told_with_memory_use_pod_and_name(h100):
    control.set_process(h100.root, 0, 10, 100 * MIB)
    control.set_process(h100.root, 0, 11, None, "mps")
    control.set_process(h100.root, 0, 12, MIB, "graphics")
    control.set_process(h100.root, 1, 13, MIB)
    control.set_busy(h100.root, 0, 11, 40)
    control.place_process(h100.root, 11, name="vllm", pod=POD)
    control.place_process(h100.root, 10, name="a-name-that-is-too-long")
    assert uses(h100) == (
        ProcessUse(10, Bytes(100 * MIB), 0, name="a-name-that-is-"),
        ProcessUse(11, None, 40, mps_client=True, pod=POD, name="vllm"),
    )


def test_an_idle_card_has_no_processes(h100):
    assert uses(h100) == ()


def test_a_process_that_is_gone_or_out_of_sight_has_no_pod_and_no_name(h100):
    control.set_process(h100.root, 0, 10, MIB)
    assert uses(h100) == (ProcessUse(10, Bytes(MIB), 0),)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_a_card_without_samples_or_mps_still_tells_memory(h100, code):
    control.set_process(h100.root, 0, 10, MIB)
    h100.inject("nvmlDeviceGetProcessUtilization", code)
    h100.inject("nvmlDeviceGetMPSComputeRunningProcesses_v3", code)
    assert uses(h100) == (ProcessUse(10, Bytes(MIB), None),)


def test_samples_that_cannot_be_read_are_an_error(h100):
    h100.inject("nvmlDeviceGetProcessUtilization", pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(HardwareError, match=f"ProcessUtilization of {h100.uuids()[0]}"):
        uses(h100)


def test_a_lost_card_is_an_error(h100):
    reader, gpu = CardUsage(h100.nvml, h100.root), h100.uuids()[0]
    control.lose(h100.root, 0)
    with pytest.raises(GpuLostError):
        reader.uses(gpu)


def test_a_process_that_is_not_there_cannot_be_made_busy(h100):
    with pytest.raises(ValueError, match="card 0 has no process 10"):
        control.set_busy(h100.root, 0, 10, 5)


SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"
CGROUPFS = f"/kubepods/besteffort/pod{POD}/0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        f"0::{SYSTEMD}/cri-containerd-0123.scope\n",
        f"0::/../../kubepods-pod{UNDERSCORED}.slice/crio-1.scope\n",
        f"0::{CGROUPFS}\n",
        f"0::/kubepods/pod{POD}\n",
        f"0::/kubelet.slice/kubelet{SYSTEMD}/x.scope/inner\n",
        f"12:memory:{CGROUPFS}\n11:cpu,cpuacct:{CGROUPFS}\n1:name=systemd:{CGROUPFS}\n",
        f"0::/docker/abc/kubelet/kubepods/burstable/pod{POD}/c1\n",
        f"0::/kubepods/pod{'f' * 8}-{POD[9:]}/kubepods/pod{POD}/c1\n",
    ],
)
def test_the_pod_is_found_in_cgroups_of_every_kind(text):
    assert pod_of_cgroups(text) == POD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/system.slice/docker.service\n",
        f"0::/user.slice/tripod{POD}/x\n",
        f"0::/kubepods/pod{POD}x/c1\n",
        "0::/kubepods/pod1234/c1\n",
    ],
)
def test_what_is_no_pod_is_not_taken_for_one(text):
    assert pod_of_cgroups(text) is None
