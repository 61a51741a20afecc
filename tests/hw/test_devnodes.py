from pathlib import Path

import pytest

from driver.errors import HardwareError
from driver.hw.devnodes import control_nodes, gpu_nodes
from driver.model.gpu import DeviceNode


@pytest.fixture
def root(tmp_path):
    dev = tmp_path / "dev"
    dev.mkdir()
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (dev / name).touch()
    return tmp_path


def test_a_card_has_the_node_of_its_minor(root):
    assert gpu_nodes(root, 3) == (
        DeviceNode(path="/dev/nvidia3", host_path=str(root / "dev/nvidia3")),
    )


def test_a_node_is_written_as_the_host_knows_it(root):
    (node,) = gpu_nodes(root, 0, host_root=Path("/run/nvidia/driver"))
    assert node == DeviceNode("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0")


def test_a_missing_card_node_names_the_path_and_how_to_make_it(root):
    with pytest.raises(HardwareError) as caught:
        gpu_nodes(root, 7)
    assert str(root / "dev/nvidia7") in str(caught.value)
    assert "nvidia-modprobe -c 7" in str(caught.value)


def test_the_shared_nodes_are_those_present(root):
    assert [node.path for node in control_nodes(root)] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    (root / "dev/nvidia-uvm-tools").touch()
    (root / "dev/nvidia-modeset").touch()
    assert [node.path for node in control_nodes(root, Path("/host"))] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert control_nodes(root, Path("/host"))[3].host_path == "/host/dev/nvidia-modeset"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("nvidiactl", "`nvidia-modprobe`"), ("nvidia-uvm", "`nvidia-modprobe -u -c 0`")],
)
def test_a_missing_shared_node_that_cuda_needs_is_an_error(root, name, remedy):
    (root / "dev" / name).unlink()
    with pytest.raises(HardwareError) as caught:
        control_nodes(root)
    assert str(root / "dev" / name) in str(caught.value)
    assert remedy in str(caught.value)
