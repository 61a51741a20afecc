import pynvml
import pytest

from driver.errors import GpuLostError, HardwareError, NoPermissionError, NotSupportedError
from driver.model.gpu import ComputeMode, GpuProcess
from driver.model.steps import SetComputeMode
from driver.model.units import Bytes
from driver.sim import control

EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


@pytest.fixture
def h100(node):
    return node("h100-80gb", 2)


@pytest.fixture
def step(h100):
    return SetComputeMode(h100.uuids()[0], EXCLUSIVE)


def mode(node, index=0):
    """What NVML itself says."""
    return pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByIndex(index))


def test_a_compute_mode_is_set_and_taken_back(h100, step):
    cards = h100.cards
    assert not cards.present(step)
    cards.do(step)
    assert cards.present(step)
    assert (mode(h100, 0), mode(h100, 1)) == (EXCLUSIVE.value, 0)
    cards.undo(step)
    assert not cards.present(step)
    assert mode(h100) == ComputeMode.DEFAULT.value


def test_doing_and_undoing_twice_changes_nothing_and_needs_no_rights(h100, step):
    cards = h100.cards
    cards.do(step)
    control.set_privileged(h100.root, False)
    cards.do(step)
    assert mode(h100) == EXCLUSIVE.value
    control.set_privileged(h100.root, True)
    cards.undo(step)
    control.set_privileged(h100.root, False)
    cards.undo(step)
    assert mode(h100) == 0


def test_undo_leads_to_the_default_mode_whatever_was_there(h100, step):
    pynvml.nvmlDeviceSetComputeMode(
        pynvml.nvmlDeviceGetHandleByIndex(0), ComputeMode.PROHIBITED.value
    )
    h100.cards.undo(step)
    assert mode(h100) == 0


def test_a_success_that_is_none_is_found_out(h100, step):
    h100.inject("nvmlDeviceSetComputeMode", pynvml.NVML_SUCCESS)
    with pytest.raises(HardwareError) as caught:
        h100.cards.do(step)
    text = str(caught.value)
    assert step.gpu in text
    assert "compute mode 0 is set and 3 (EXCLUSIVE_PROCESS) was wanted" in text


def test_missing_rights_are_named(h100, step):
    control.set_privileged(h100.root, False)
    with pytest.raises(NoPermissionError, match=f"{step.gpu}: NO_PERMISSION"):
        h100.cards.do(step)
    assert mode(h100) == 0


def test_a_refused_mode_is_not_supported(h100, step):
    h100.inject("nvmlDeviceSetComputeMode", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(NotSupportedError):
        h100.cards.do(step)


@pytest.mark.parametrize("action", ["do", "undo", "present"])
def test_a_lost_card_is_an_error_and_works_again_when_it_is_back(h100, step, action):
    cards = h100.cards
    control.lose(h100.root, 0)
    with pytest.raises(GpuLostError, match=step.gpu):
        getattr(cards, action)(step)
    control.restore(h100.root, 0)
    getattr(cards, action)(step)
    assert mode(h100) == (EXCLUSIVE.value if action == "do" else 0)


def test_the_minor_is_looked_up_each_time(h100):
    cards = h100.cards
    first, second = h100.uuids()
    assert [node.path for node in cards.nodes(second)] == ["/dev/nvidia1"]
    control.reboot(h100.root, permute_minors=True)
    assert [node.path for node in cards.nodes(second)] == ["/dev/nvidia0"]
    assert [node.host_path for node in cards.nodes(first)] == [str(h100.root / "dev/nvidia1")]


def test_a_missing_device_node_is_an_error_of_its_path(h100):
    (h100.root / "dev/nvidia1").unlink()
    first, second = h100.uuids()
    assert h100.cards.nodes(first)
    with pytest.raises(HardwareError, match=str(h100.root / "dev/nvidia1")):
        h100.cards.nodes(second)


def test_the_shared_nodes_and_files_of_the_node_are_told(h100):
    assert [node.path for node in h100.cards.control_nodes()] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    inside = [path for _, path in h100.cards.files().mounts]
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08" in inside
    assert "/usr/bin/nvidia-smi" in inside


def test_the_files_are_those_of_the_driver_that_runs(h100):
    cards = h100.cards
    cards.files()
    control.set_driver_version(h100.root, "590.44.01")
    assert cards.files().driver_version == "590.44.01"
    assert [path for _, path in cards.files().mounts if path.endswith("580.105.08")] == []


def test_processes_are_those_of_the_card(h100):
    first, second = h100.uuids()
    control.set_process(h100.root, 0, 4711, 1 << 30)
    control.set_process(h100.root, 0, 4712, None)
    found = h100.cards.processes(first)
    assert set(found) == {GpuProcess(4711, Bytes(1 << 30)), GpuProcess(4712, None)}
    assert h100.cards.processes(second) == ()


def test_the_inventory_is_read_anew(h100):
    cards = h100.cards
    assert len(cards.discover().gpus) == 2
    assert cards.unlisted(cards.discover()) == ()
    control.lose(h100.root, 1)
    assert len(cards.discover().gpus) == 1
