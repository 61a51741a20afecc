import pytest

from driver.hw.sysfs import Sysfs
from driver.model.ids import PciAddress

BDF = PciAddress("0000:3b:00.0")


def add_function(root, bdf=BDF, path="pci0000:3a/0000:3a:02.0", **files):
    """A PCI function as the kernel shows it: a folder by topology and a link by address."""
    folder = root / "sys/devices" / path / bdf
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    up = "../../../devices"
    (links / bdf).symlink_to(f"{up}/{path}/{bdf}")
    return folder


@pytest.mark.parametrize(
    ("content", "node"),
    [
        pytest.param("1\n", 1, id="a node"),
        pytest.param("0\n", 0, id="node zero"),
        pytest.param("-1\n", None, id="the kernel does not know"),
        pytest.param("", None, id="empty"),
        pytest.param("x\n", None, id="not a number"),
    ],
)
def test_the_numa_node_is_read(tmp_path, content, node):
    add_function(tmp_path, numa_node=content)
    assert Sysfs(tmp_path).numa_node(BDF) == node


def test_a_card_without_sysfs_has_no_numa_node_no_root_and_no_driver(tmp_path):
    sysfs = Sysfs(tmp_path)
    assert sysfs.numa_node(BDF) is None
    assert sysfs.pcie_root(BDF) is None
    assert sysfs.kernel_driver(BDF) is None


@pytest.mark.parametrize(
    ("path", "root"),
    [
        pytest.param("pci0000:3a/0000:3a:02.0", "pci0000:3a", id="behind a port"),
        pytest.param("pci0000:3a/0000:3a:02.0/0000:3b:00.0", "pci0000:3a", id="behind a switch"),
        pytest.param("LNXSYSTM:00/ACPI0004:00/pci10000:00", "pci10000:00", id="five digit domain"),
        pytest.param("platform/soc", None, id="no root complex"),
    ],
)
def test_the_pcie_root_comes_from_the_resolved_path(tmp_path, path, root):
    bdf = PciAddress("0000:3c:00.0")
    add_function(tmp_path, bdf, path)
    assert Sysfs(tmp_path).pcie_root(bdf) == root


def test_only_display_functions_of_nvidia_are_listed_sorted(tmp_path):
    gpu = {"vendor": "0x10de\n", "class": "0x030200\n"}
    add_function(tmp_path, "0000:af:00.0", **gpu)
    add_function(tmp_path, "0000:3b:00.0", vendor="0x10DE\n", **{"class": "0x030000\n"})
    add_function(tmp_path, "0000:3b:00.1", vendor="0x10de\n", **{"class": "0x040300\n"})
    add_function(tmp_path, "0000:00:02.0", vendor="0x8086\n", **{"class": "0x030000\n"})
    add_function(tmp_path, "0000:05:00.0", vendor="0x10de\n", **{"class": "0x068000\n"})
    add_function(tmp_path, "0000:06:00.0")
    assert Sysfs(tmp_path).nvidia_pci_functions() == ("0000:3b:00.0", "0000:af:00.0")


def test_a_root_without_a_pci_bus_has_no_functions(tmp_path):
    assert Sysfs(tmp_path).nvidia_pci_functions() == ()


def test_the_bound_kernel_driver_is_named(tmp_path):
    folder = add_function(tmp_path)
    (tmp_path / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (folder / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers/vfio-pci")
    assert Sysfs(tmp_path).kernel_driver(BDF) == "vfio-pci"
