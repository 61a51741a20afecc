"""Topology and files of a simulated node: what lies around NVML."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from driver.sim import control, seam, setup
from driver.sim.files import device_node
from driver.sim.store import SimulationError
from tests.sim.test_sim_faults import REPOSITORY


def handles():
    return [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]


def links(handle):
    """(state, version, remote type, remote bus id) of every link, the last two None when down."""
    found = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except pynvml.NVMLError_InvalidArgument:
            break
        except pynvml.NVMLError_NotSupported:
            return []
        version = pynvml.nvmlDeviceGetNvLinkVersion(handle, link)
        if state:
            kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
            found.append((state, version, kind, remote))
        else:
            found.append((state, version, None, None))
    return found


@pytest.mark.parametrize(
    ("profile", "count", "version"),
    [("a100-40gb", 12, 4), ("h100-80gb", 18, 6), ("h200", 18, 6), ("b200", 18, 7)],
)
def test_sxm_cards_reach_each_other_over_switches(node, profile, count, version):
    node(profile, 8)
    cards = {pynvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles()}
    reached = set()
    for handle in handles():
        found = links(handle)
        assert len(found) == count
        assert {entry[:3] for entry in found} == {
            (1, version, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)
        }
        reached.add(frozenset(entry[3] for entry in found))
    assert len(reached) == 1  # the same switches from every card
    assert not cards & next(iter(reached))


def test_pcie_cards_are_bridged_in_pairs_and_the_odd_one_is_alone(node):
    node("a30", 5)
    bus = [pynvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles()]
    for index, handle in enumerate(handles()):
        found = links(handle)
        assert len(found) == 4
        if index == 4:
            assert {entry[0] for entry in found} == {0}
        else:
            assert {entry[2:] for entry in found} == {
                (pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, bus[index ^ 1])
            }


@pytest.mark.parametrize("profile", ["l4", "t4"])
def test_small_cards_have_no_nvlink(node, refused, profile):
    node(profile, 2)
    assert all(links(handle) == [] for handle in handles())
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetNvLinkVersion(handles()[0], 0)


def test_a_link_that_is_down_is_down_on_both_sides_of_a_bridge(node):
    root = node("a30", 2)
    control.set_link(root, 0, 1, active=False)
    for handle in handles():
        assert [entry[0] for entry in links(handle)] == [1, 0, 1, 1]
    control.set_link(root, 0, 1, active=True)
    assert [entry[0] for entry in links(handles()[1])] == [1, 1, 1, 1]


def fabric(handle, kind):
    info = kind()
    call = (
        pynvml.nvmlDeviceGetGpuFabricInfo
        if kind is pynvml.c_nvmlGpuFabricInfo_t
        else pynvml.nvmlDeviceGetGpuFabricInfoV
    )
    call(handle, pynvml.byref(info))
    return info


@pytest.mark.parametrize(
    "kind",
    [
        pynvml.c_nvmlGpuFabricInfo_t,
        pynvml.c_nvmlGpuFabricInfo_v2_t,
        pynvml.c_nvmlGpuFabricInfo_v3_t,
    ],
)
def test_a_fabric_that_was_asked_for_is_complete_and_the_same_for_all_cards(node, kind):
    node("b200", 2, fabric=True)
    found = [fabric(handle, kind) for handle in handles()]
    assert {info.state for info in found} == {pynvml.NVML_GPU_FABRIC_STATE_COMPLETED}
    assert {info.status for info in found} == {pynvml.NVML_SUCCESS}
    assert len({(bytes(info.clusterUuid), info.cliqueId) for info in found}) == 1
    assert any(bytes(found[0].clusterUuid))


def test_without_a_fabric_the_state_says_so(node):
    node("h200", 1)
    info = fabric(handles()[0], pynvml.c_nvmlGpuFabricInfo_v3_t)
    assert info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    assert not any(bytes(info.clusterUuid))


def test_cards_that_cannot_join_a_fabric_do_not_answer(node, refused):
    node("a100-40gb", 1)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        fabric(handles()[0], pynvml.c_nvmlGpuFabricInfo_v2_t)


def test_sysfs_tells_numa_node_and_pcie_root_of_each_card(node):
    root = node("h100-80gb", 8)
    numa, roots = [], []
    for handle in handles():
        address = pynvml.nvmlDeviceGetPciInfo(handle).busId.lower()[4:]
        link = root / "sys/bus/pci/devices" / address
        real = link.resolve()
        assert link.is_symlink()
        assert real.is_relative_to((root / "sys/devices").resolve())
        assert real.name == address
        roots.append(real.relative_to((root / "sys/devices").resolve()).parts[0])
        numa.append(int((link / "numa_node").read_text()))
        assert (link / "vendor").read_text() == "0x10de\n"
    assert numa == [0, 0, 0, 0, 1, 1, 1, 1]
    assert roots[0::2] == roots[1::2]
    assert len(set(roots)) == 4
    assert all(name.startswith("pci0000:") for name in roots)


def test_a_card_is_found_by_each_spelling_of_its_address(node):
    node(count=2)
    info = pynvml.nvmlDeviceGetPciInfo(handles()[1])
    uuid = pynvml.nvmlDeviceGetUUID(handles()[1])
    for spelling in (info.busId, info.busIdLegacy, info.busId.lower()[4:], info.busId[9:]):
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(spelling)
        assert pynvml.nvmlDeviceGetUUID(handle) == uuid
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 1


def test_512_cards_are_all_distinct_and_in_pci_order(node):
    node("l4", 512)
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles()]
    bus = [pynvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles()]
    assert len({uuid[4:12] for uuid in uuids}) == 512
    assert bus == sorted(set(bus))


def test_identity_follows_from_seed_and_index_alone(tmp_path):
    found = []
    for name, count, seed in (("a", 2, 1), ("b", 4, 1), ("c", 2, 2)):
        setup.create(tmp_path / name, "l4", count, seed=seed)
        seam.install(tmp_path / name)
        pynvml.nvmlInit()
        found.append([pynvml.nvmlDeviceGetUUID(handle) for handle in handles()])
        seam.uninstall()
    assert found[0] == found[1][:2]
    assert not set(found[0]) & set(found[2])


def test_every_file_a_driver_needs_is_there(node):
    root = node("h100-80gb", 2)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        assert (root / "dev" / name).exists()
    assert not (root / "dev/nvidia2").exists()
    assert "235 nvidia-caps\n" in (root / "proc/devices").read_text()
    assert "580.105.08" in (root / "proc/driver/nvidia/version").read_text()
    config = (root / "proc/driver/nvidia/capabilities/mig/config").read_text()
    assert config == "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    minors = dict(
        line.rsplit(" ", 1)
        for line in (root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    )
    # published samples (MIG user guide)
    assert minors["gpu0/gi0/access"] == "3"
    assert minors["gpu0/gi1/ci2/access"] == "15"
    assert minors["gpu31/gi14/ci7/access"] == "4322"
    assert len(minors) == 2 + 32 * 15 * 9
    library = root / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert library.resolve().name == "libcuda.so.580.105.08"
    assert os.access(root / "usr/bin/nvidia-smi", os.X_OK)


def test_another_driver_version_replaces_the_libraries(node):
    root = node("l4", 1)
    control.set_driver_version(root, "595.91.07")
    folder = root / "usr/lib/x86_64-linux-gnu"
    assert (folder / "libnvidia-ml.so.1").resolve().name == "libnvidia-ml.so.595.91.07"
    assert not list(folder.glob("*580*"))
    assert "595.91.07" in (root / "proc/driver/nvidia/version").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_as_root_device_nodes_are_character_devices_like_dev_null(node):
    root = node("h100-80gb", 1)
    for path in (
        root / "dev/nvidia0",
        root / "dev/nvidiactl",
        root / "dev/nvidia-caps/nvidia-cap1",
    ):
        status = path.stat()
        assert stat.S_ISCHR(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o666
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (1, 3)
        assert path.read_bytes() == b""


def test_without_the_right_to_make_nodes_they_are_plain_files(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError

    monkeypatch.setattr(os, "mknod", refuse)
    device_node(tmp_path / "nvidia0")
    assert (tmp_path / "nvidia0").is_file()


def test_creating_the_same_node_again_keeps_its_state_and_mends_its_files(node):
    root = node("a30", 2, seed=5)
    control.set_recovery_action(root, 1, 1)
    before = json.loads((root / "sim/state.json").read_text())
    boot_id = (root / "proc/sys/kernel/random/boot_id").read_text()
    (root / "dev/nvidia1").unlink()
    (root / "proc/devices").unlink()
    setup.create(root, "a30", 2)
    assert json.loads((root / "sim/state.json").read_text()) == before
    assert (root / "proc/sys/kernel/random/boot_id").read_text() == boot_id
    assert (root / "dev/nvidia1").exists()
    assert (root / "proc/devices").exists()


@pytest.mark.parametrize(("profile", "count"), [("a30", 4), ("l4", 2)])
def test_another_node_in_the_same_folder_is_refused(node, profile, count):
    root = node("a30", 2)
    with pytest.raises(SimulationError) as caught:
        setup.create(root, profile, count)
    assert "a30:2" in str(caught.value)
    assert f"{profile}:{count}" in str(caught.value)
    assert f"delete the folder {root}" in str(caught.value)
    assert "--simulate-root" in str(caught.value)
    with pytest.raises(SimulationError, match=f"asked for {profile}:{count}"):
        setup.check_same(root, profile, count)
    setup.check_same(root, "a30", 2)


def break_root(tmp_path, how):
    root = tmp_path / "node"
    if how == "a file":
        root.touch()
    elif how == "below a file":
        root.touch()
        return root / "node"
    elif how == "a state that is a folder":
        (root / "sim/state.json").mkdir(parents=True)
    elif how == "a lock that is a folder":
        (root / "sim/lock").mkdir(parents=True)
    elif how == "a file for a folder":
        root.mkdir()
        (root / "dev").touch()
    return root


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("a file", "Not a directory"),
        ("below a file", "Not a directory"),
        ("a state that is a folder", "Is a directory"),
        ("a lock that is a folder", "Is a directory"),
        ("a file for a folder", "Not a directory"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named_with_the_option(tmp_path, how, why):
    root = break_root(tmp_path, how)
    with pytest.raises(SimulationError) as caught:
        setup.create(root, "l4", 1)
    assert f"{root} cannot be used: {why} ({root}" in str(caught.value)
    assert "--simulate-root" in str(caught.value)


def test_a_folder_in_which_nothing_can_be_made_is_named():
    with pytest.raises(SimulationError, match="/proc/none cannot be used: nothing can be made"):
        setup.create(Path("/proc/none"), "l4", 1)


@pytest.mark.parametrize("call", ["open", "replace"])
def test_a_folder_without_the_right_or_room_is_named(node, monkeypatch, call):
    root = node("l4", 1)

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(
        SimulationError, match=r"cannot be used: Permission denied .*sim/"
    ) as raised:
        control.lose(root, 0)
    assert "--root of `aliquot sim`" in str(raised.value)


def test_wrong_requests_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="no profile 'x'; known: a30, a100-40gb"):
        setup.create(tmp_path / "n", "x", 1)
    with pytest.raises(ValueError, match="1 to 512 cards, found 0"):
        setup.create(tmp_path / "n", "l4", 0)
    with pytest.raises(ValueError, match=r"l4 has no .* fabric; .*: h100-80gb, h200, b200"):
        setup.create(tmp_path / "n", "l4", 1, fabric=True)
    with pytest.raises(SimulationError, match="aliquot node run --simulate"):
        seam.install(tmp_path / "nowhere")


def test_a_damaged_state_file_is_named(node):
    root = node("l4", 1)
    (root / "sim/state.json").write_text("{")
    with pytest.raises(SimulationError, match=r"state\.json is not a state file"):
        control.lose(root, 0)


def test_two_processes_that_create_at_once_make_one_node(tmp_path):
    code = (
        "import sys, pathlib\nfrom driver.sim import setup\n"
        "setup.create(pathlib.Path(sys.argv[1]), 'h100-80gb', 4)"
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "node")],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": REPOSITORY},
        )
        for _ in range(3)
    ]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    seam.install(tmp_path / "node")
    pynvml.nvmlInit()
    try:
        assert pynvml.nvmlDeviceGetCount() == 4
    finally:
        seam.uninstall()
