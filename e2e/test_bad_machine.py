"""A full disk, a read-only folder, no NVML: told, survived, and over when the cause is over."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from driver.sim import control
from driver.sim.store import Store
from e2e.bystander import (
    bystander,
    driver,
    gpu_config,
    hand,
    hand_of,
    modes,
    nothing_else_is_affected,
    other,
    policy,
)
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DriverNode
from e2e.workloads import opaque

__all__ = ["bystander", "driver", "hand", "nothing_else_is_affected", "other", "policy"]

# The disk ------------------------------------------------------------------------------------


@contextmanager
def tmpfs(folder: Path, size: str = "64k") -> Iterator[Path]:
    """A small file system of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)


def fill(folder: Path, pages_left: int = 0) -> Path:
    """Use up a small file system but for so many pages."""
    filler, page = folder / "filler", 4096
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * page):
                pass
        except OSError:
            file.truncate((filler.stat().st_size // page - pages_left) * page)
    return filler


def left(folder: Path) -> list[str]:
    """Names of its files."""
    return sorted(p.name for p in folder.iterdir() if p.is_file() and p.name != "filler")


@pytest.mark.parametrize("pages", [0, 1], ids=["for no record", "for STARTED alone"])
def test_a_full_disk_refuses_and_leaves_nothing(other: DriverNode, hand, pages: int):
    folder = other.plugin_dir / "claims"
    with tmpfs(folder):
        other.process.start()
        other.wait_published(2)
        config = opaque(other.name, gpu_config(computeMode="ExclusiveProcess"))
        first = hand("first", hand_of(other, 0))
        second = hand("second", hand_of(other, 1), config)
        assert other.prepare(first).error == ""
        before = left(folder)
        filler = fill(folder, pages)

        error = other.prepare(second).error

        assert str(folder) in error
        assert "ENOSPC" in error
        assert "--plugin-dir" in error
        assert left(folder) == before
        assert len(other.cdi_files()) == 1
        assert modes(other) <= {0}
        assert other.prepare(first).error == ""  # a repeat needs no space
        assert other.unprepare(second) == ""
        assert other.unprepare(first) == ""  # nor does giving back
        poll(lambda: left(folder) == [], "what was put aside to be deleted")
        assert other.cdi_files() == []

        filler.unlink()
        assert other.prepare(second).error == ""
        assert other.unprepare(second) == ""
        other.process.stop()


def test_a_read_only_cdi_folder_is_named(cluster: LocalCluster, other: DriverNode, hand):
    folder = cluster.layout.root / "own-cdi"
    with tmpfs(folder):
        other.process.argv = [*other.process.argv, f"--cdi-dir={folder}"]
        other.process.start()
        other.wait_published(2)
        first, second = hand("first", hand_of(other, 0)), hand("second", hand_of(other, 1))
        assert other.prepare(first).error == ""
        before = left(folder)
        remount(folder, "ro")

        error = other.prepare(second).error

        assert str(folder) in error
        assert "read-write" in error
        assert "--cdi-dir" in error
        assert other.records() == [first.uid]
        assert other.prepare(first).error == ""
        assert "--cdi-dir" in other.unprepare(first)
        assert left(folder) == before

        remount(folder, "rw")
        assert other.prepare(second).error == ""
        assert other.unprepare(first) == other.unprepare(second) == ""
        assert left(folder) == other.records() == []
        other.process.stop()


# NVML ----------------------------------------------------------------------------------------

BROKEN = {
    "missing": (lambda sim: control.set_library(sim, "missing"), "install the NVIDIA driver"),
    "not loaded": (lambda sim: control.set_library(sim, "not_loaded"), "modprobe nvidia"),
    "too old": (lambda sim: control.set_driver_version(sim, "470.57.02"), "525 or newer"),
}


@pytest.mark.parametrize(("damage", "told"), BROKEN.values(), ids=list(BROKEN))
def test_without_nvml_the_plugin_says_so_and_gives_back_what_is_held(
    other: DriverNode, hand, damage, told: str
):
    other.process.start()
    other.wait_published(2)
    held, wanted = hand("held", hand_of(other, 0)), hand("wanted", hand_of(other, 1))
    assert other.prepare(held).error == ""
    other.process.stop()
    version = Store(other.sim).read().driver_version
    damage(other.sim)

    other.process.launch()
    poll(
        lambda: [reason for reason in other.ready().get("reasons", []) if told in reason],
        "the readiness to say why",
        detail=lambda: f"{other.ready()}",
    )
    assert not other.is_ready()
    poll((other.plugin_dir / "dra.sock").exists, "the socket to be served")
    poll(lambda: other.prepare(wanted).error, "an answer")
    assert told in other.prepare(wanted).error
    assert other.unprepare(held) == ""
    assert not other.records()
    assert not other.cdi_files()
    pid = other.process.pid

    control.set_library(other.sim, "ok")
    control.set_driver_version(other.sim, version)
    poll(other.is_ready, "the plugin to be Ready")
    assert other.prepare(wanted).error == ""
    assert other.unprepare(wanted) == ""
    assert other.process.pid == pid
