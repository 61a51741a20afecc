import os
import socket
from pathlib import Path

import pytest

from driver.errors import HardwareError
from driver.hw.libraries import DriverFileCache, driver_files

VERSION = "580.105.08"
LIB = "usr/lib/x86_64-linux-gnu"


def put(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


@pytest.fixture
def root(tmp_path):
    put(
        tmp_path,
        f"{LIB}/libcuda.so.{VERSION}",
        f"{LIB}/libcuda.so.570.1",  # left behind by an update
        f"{LIB}/libc.so.6",
        f"{LIB}/libnvidia-ml.so.{VERSION}",
        f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}",
        f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        f"lib/firmware/nvidia/{VERSION}/notes.txt",
        "lib/firmware/nvidia/570.1/gsp_ga10x.bin",
        "usr/bin/nvidia-smi",
        "usr/bin/bash",
        "usr/local/bin/nvidia-smi",  # later in the search path
    )
    for name, target in {
        "libcuda.so.1": f"libcuda.so.{VERSION}",
        "libcuda.so": "libcuda.so.1",
        "libnvidia-ml.so.1": f"/{LIB}/libnvidia-ml.so.{VERSION}",
        "libcuda-old.so": "libcuda.so.570.1",
        "libc.so": "libc.so.6",
    }.items():
        (tmp_path / LIB / name).symlink_to(target)
    return tmp_path


def test_libraries_of_this_version_programs_and_firmware_are_mounted_where_they_are(root):
    base = root.resolve()
    wanted = [
        f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "usr/bin/nvidia-smi",
        f"{LIB}/libcuda.so.{VERSION}",
        f"{LIB}/libnvidia-ml.so.{VERSION}",
        f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}",
    ]
    found = driver_files(root, VERSION)
    assert found.driver_version == VERSION
    assert found.mounts == tuple((str(base / path), f"/{path}") for path in wanted)


def test_the_links_to_mounted_libraries_are_told_straight_ones_first(root):
    assert driver_files(root, VERSION).symlinks == (
        (f"/{LIB}/libnvidia-ml.so.{VERSION}", f"/{LIB}/libnvidia-ml.so.1"),
        (f"libcuda.so.{VERSION}", f"/{LIB}/libcuda.so.1"),
        ("libcuda.so.1", f"/{LIB}/libcuda.so"),
    )


def test_the_folder_of_libcuda_comes_first(root):
    put(root, f"lib64/libnvidia-a.so.{VERSION}")
    assert driver_files(root, VERSION).library_folders == (
        f"/{LIB}",
        "/lib64",
        f"/{LIB}/vdpau",
    )


def test_paths_are_written_as_the_host_knows_them(root):
    mounts = driver_files(root, VERSION, host_root=Path("/run/nvidia/driver")).mounts
    assert ("/run/nvidia/driver/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi") in mounts


def test_sockets_are_mounted_but_never_the_hosts_mps_folder(root, monkeypatch):
    (root / "run/nvidia-persistenced").mkdir(parents=True)
    (root / "tmp/nvidia-mps").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(root)  # a socket path is limited to 107 bytes
        listener.bind("run/nvidia-persistenced/socket")
        inside = [path for _, path in driver_files(root, VERSION).mounts]
    assert "/run/nvidia-persistenced/socket" in inside
    assert not [path for path in inside if "mps" in path]


def test_a_program_that_is_a_link_is_mounted_under_its_own_name(root):
    put(root, "usr/lib/nvidia/nvidia-debugdump")
    (root / "usr/bin/nvidia-debugdump").symlink_to("/usr/lib/nvidia/nvidia-debugdump")
    (root / "usr/bin/nvidia-imex").symlink_to("/nowhere")
    inside = [path for _, path in driver_files(root, VERSION).mounts]
    assert "/usr/bin/nvidia-debugdump" in inside
    assert "/usr/bin/nvidia-imex" not in inside


def test_a_missing_libcuda_names_version_and_root(root):
    with pytest.raises(HardwareError) as caught:
        driver_files(root, "590.1")
    text = str(caught.value)
    assert "libcuda.so.590.1" in text
    assert str(root) in text
    assert "driver root" in text


def age(root):
    """Let all folders look as if nothing had changed for an hour."""
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        os.utime(folder, (1_700_000_000, 1_700_000_000))


def test_files_are_searched_again_when_a_folder_changes(root):
    age(root)
    cache = DriverFileCache(root)
    first = cache.files(VERSION)
    assert cache.files(VERSION) is first
    put(root, f"{LIB}/libnvidia-new.so.{VERSION}")
    second = cache.files(VERSION)
    assert f"/{LIB}/libnvidia-new.so.{VERSION}" in [path for _, path in second.mounts]


def test_files_are_searched_again_when_a_folder_appears(root):
    age(root)
    cache = DriverFileCache(root)
    cache.files(VERSION)
    put(root, f"usr/lib64/libnvidia-new.so.{VERSION}")
    found = [path for _, path in cache.files(VERSION).mounts]
    assert f"/usr/lib64/libnvidia-new.so.{VERSION}" in found


def test_files_are_searched_again_for_another_driver_version(root):
    put(root, f"{LIB}/libcuda.so.590.1")
    age(root)
    cache = DriverFileCache(root, Path("/host"))
    assert cache.files(VERSION).driver_version == VERSION
    assert f"/host/{LIB}/libcuda.so.590.1" in [path for path, _ in cache.files("590.1").mounts]


def test_nothing_is_kept_while_a_folder_is_fresh(root):
    age(root)
    os.utime(root / LIB)
    cache = DriverFileCache(root)
    assert cache.files(VERSION) is not cache.files(VERSION)
