import ctypes.util
import shutil
from pathlib import Path

import pynvml
import pytest

from driver.errors import (
    GpuLostError,
    HardwareError,
    NoPermissionError,
    NotSupportedError,
    NvmlMissingError,
)
from driver.hw.nvml import Nvml, load_library
from driver.sim import control, seam


@pytest.mark.parametrize(
    ("state", "text"),
    [
        pytest.param("missing", "set the driver root", id="no library"),
        pytest.param("not_loaded", "modprobe nvidia", id="no kernel driver"),
    ],
)
def test_a_node_without_a_driver_says_what_to_mend(node, state, text):
    bare = node(opened=False)
    control.set_library(bare.root, state)
    with pytest.raises(NvmlMissingError, match=text):
        bare.nvml.open()
    control.set_library(bare.root, "ok")
    bare.nvml.open()
    assert bare.nvml.count() == 2


@pytest.mark.parametrize("version", ["470.256.02", "524.9", "nonsense"])
def test_an_old_driver_is_refused_naming_found_and_wanted(node, monkeypatch, version):
    old = node(opened=False)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: version)
    with pytest.raises(NvmlMissingError) as caught:
        old.nvml.open()
    assert f"{version} found" in str(caught.value)
    assert "525 or newer wanted" in str(caught.value)
    monkeypatch.undo()
    with pytest.raises(NvmlMissingError, match="UNINITIALIZED"):
        old.nvml.count()  # nothing of the attempt is left


def test_the_oldest_driver_that_is_served_opens(node):
    old = node(opened=False, driver_version="525.60.13")
    old.nvml.open()
    assert old.nvml.driver_version() == "525.60.13"
    assert old.nvml.cuda_driver_version() == (12, 0)


def test_opening_and_closing_twice_is_once(node):
    h100 = node()
    h100.nvml.open()
    h100.nvml.close()
    h100.nvml.close()
    with pytest.raises(NvmlMissingError, match="opened again"):
        h100.nvml.count()
    h100.nvml.open()
    assert h100.nvml.count() == 2


def test_closing_after_the_library_went_is_no_error(node):
    h100 = node()
    pynvml.nvmlShutdown()
    h100.nvml.close()


def test_a_handle_is_kept_until_it_is_forgotten(node):
    h100 = node()
    first, second = h100.uuids()
    assert h100.nvml.handle(first) is h100.nvml.handle(first)
    kept = h100.nvml.handle(first), h100.nvml.handle(second)
    h100.nvml.forget(first)
    assert h100.nvml.handle(first) is not kept[0]
    assert h100.nvml.handle(second) is kept[1]
    h100.nvml.drop_handles()
    assert h100.nvml.handle(second) is not kept[1]
    assert h100.nvml.uuid(h100.nvml.handle(second)) == second


def test_handles_are_new_after_opening_again(node):
    h100 = node()
    uuid = h100.uuids()[1]
    h100.nvml.close()
    h100.nvml.open()
    with h100.nvml.on(uuid) as handle:
        assert h100.nvml.minor(handle) == 1


def test_an_error_names_the_card_and_a_stale_handle_goes(node):
    h100 = node()
    uuid = h100.uuids()[0]
    kept = h100.nvml.handle(uuid)
    control.lose(h100.root, 0)
    with (
        pytest.raises(GpuLostError, match=f"nvmlDeviceGetMinorNumber of {uuid}: GPU_IS_LOST"),
        h100.nvml.on(uuid) as handle,
    ):
        h100.nvml.minor(handle)
    control.restore(h100.root, 0)
    assert h100.nvml.handle(uuid) is not kept


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, NotSupportedError),
        (pynvml.NVML_ERROR_NO_PERMISSION, NoPermissionError),
    ],
)
def test_a_refusal_that_says_nothing_of_the_handle_keeps_it(node, code, kind):
    h100 = node()
    uuid = h100.uuids()[0]
    kept = h100.nvml.handle(uuid)
    h100.inject("nvmlDeviceGetMinorNumber", code)
    with pytest.raises(kind), h100.nvml.on(uuid) as handle:
        h100.nvml.minor(handle)
    assert h100.nvml.handle(uuid) is kept


def test_an_unknown_card_is_named(node):
    h100 = node()
    with pytest.raises(HardwareError, match="GPU-gone: NOT_FOUND"), h100.nvml.on("GPU-gone"):
        pytest.fail("there is no such card")


@pytest.fixture
def no_library():
    """pynvml as in a fresh process."""
    seam.uninstall()
    yield
    seam.uninstall()


@pytest.fixture
def some_library():
    """Any shared library: loading is what is tested, not what it has."""
    ctypes.CDLL(ctypes.util.find_library("m"))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return next(line.split()[-1] for line in maps.splitlines() if "/libm" in line)


def test_the_library_below_the_driver_root_is_taken(tmp_path, no_library, some_library):
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libnvidia-ml.so.1").write_text("not a library, tried and passed over")
    shutil.copy(some_library, folder / "libnvidia-ml.so.580.1")
    (folder / "libnvidia-ml.so.1").symlink_to("/usr/lib64/libnvidia-ml.so.580.1")
    load_library(tmp_path)
    assert pynvml.nvmlLib._name == str(tmp_path.resolve() / "usr/lib64/libnvidia-ml.so.580.1")


def test_a_library_that_is_no_nvml_is_refused(tmp_path, no_library, some_library):
    (tmp_path / "lib").mkdir()
    shutil.copy(some_library, tmp_path / "lib/libnvidia-ml.so.1")
    load_library(tmp_path)
    with pytest.raises(NotSupportedError, match="nvmlInit: FUNCTION_NOT_FOUND"):
        Nvml().open()


def test_a_driver_root_without_the_library_is_named(tmp_path, no_library):
    with pytest.raises(NvmlMissingError) as caught:
        load_library(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "libnvidia-ml.so.1" in str(caught.value)
    assert pynvml.nvmlLib is None


def test_every_refusal_of_the_loader_is_told(tmp_path, no_library):
    for folder in ("lib", "lib64"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libnvidia-ml.so.1").write_text("not a library")
    with pytest.raises(NvmlMissingError) as caught:
        load_library(tmp_path)
    assert "lib64/libnvidia-ml.so.1" in str(caught.value)
    assert "/lib/libnvidia-ml.so.1" in str(caught.value)


def test_at_the_hosts_own_root_the_loader_decides(no_library, monkeypatch):
    asked = []

    def load(name):
        asked.append(name)
        return name

    monkeypatch.setattr(ctypes, "CDLL", load)
    load_library(Path("/"))
    assert pynvml.nvmlLib == asked[0] == "libnvidia-ml.so.1"


def test_a_library_that_is_set_already_stays(node, tmp_path):
    h100 = node()
    load_library(tmp_path / "elsewhere")
    assert h100.nvml.count() == 2
