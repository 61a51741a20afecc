"""The judging parts of the doctor, and those that read files and folders."""

import fcntl
from pathlib import Path
from typing import Any

import pytest

from cli.checks import folders, hardware, kubelet, policy, runtime
from cli.checks.runtime import CdiConfig, containerd_cdi, crio_cdi, judge_containerd, judge_dirs
from driver.errors import NvmlMissingError
from driver.model.gpu import Inventory, UnreadableGpu
from driver.model.ids import PciAddress
from driver.settings import Settings
from driver.state.journal import Journal
from tests.cli.snapshots import snapshot
from tests.state.builders import record

V3, V2, V1 = "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"
CONFIG = Path("/etc/containerd/config.toml")


def plugins(section: str, **keys: Any) -> dict[str, Any]:
    return {"plugins": {section: keys}}


def levels(findings):
    return {each.check: each.level for each in findings}


# Container runtime -----------------------------------------------------------------------


@pytest.mark.parametrize("section", [V3, V2, V1])
@pytest.mark.parametrize("on", [True, False])
def test_containerd_is_read_in_every_version_of_its_configuration(section, on):
    found = containerd_cdi([plugins(section, enable_cdi=on, cdi_spec_dirs=["/a"])])
    assert found == CdiConfig(on, ("/a",))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], CdiConfig(None)),
        ([{}], CdiConfig(None)),
        ([plugins(V2)], CdiConfig(None)),
        ([{"plugins": {V2: "not a table"}}], CdiConfig(None)),
        ([plugins(V2, cdi_spec_dirs=[])], CdiConfig(None, ())),
        ([plugins(V3, enable_cdi=False), plugins(V3, enable_cdi=True)], CdiConfig(True)),
        ([plugins(V3, cdi_spec_dirs=["/x"]), plugins(V3)], CdiConfig(None, ("/x",))),
    ],
)
def test_what_containerd_does_not_say_stays_open(files, expected):
    assert containerd_cdi(files) == expected


@pytest.mark.parametrize(
    ("enabled", "version", "level"),
    [
        (True, None, "ok"),
        (True, (1, 7), "ok"),
        (True, (1, 6), "fail"),  # no CDI at all
        (False, (2, 1), "fail"),
        (False, None, "fail"),
        (None, (2, 0), "ok"),
        (None, (1, 7), "fail"),
        (None, None, "warn"),
    ],
)
def test_containerd_has_cdi_on_or_the_cure_is_named(enabled, version, level):
    found = judge_containerd(CdiConfig(enabled), version, CONFIG)
    assert found.level == level
    assert bool(found.mend) is (level != "ok")
    if version != (1, 6) and level != "ok":
        assert "enable_cdi = true" in found.mend
        assert str(CONFIG) in found.mend


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("containerd github.com/containerd/containerd v2.4.2 1c4457e", (2, 4)),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1", (1, 6)),
        ("containerd", None),
        ("", None),
    ],
)
def test_the_version_is_found_in_what_containerd_prints(text, expected):
    assert runtime.version_in(text) == expected


def test_a_folder_that_the_runtime_does_not_read_fails():
    config = CdiConfig(True, ("/etc/cdi", "/var/run/cdi"))
    real = {"/etc/cdi": "/etc/cdi", "/var/run/cdi": "/run/cdi", "/run/cdi": "/run/cdi"}
    assert judge_dirs("containerd", config, Path("/run/cdi"), real).level == "ok"
    found = judge_dirs("containerd", config, Path("/opt/cdi"), {**real, "/opt/cdi": "/opt/cdi"})
    assert found.level == "fail"
    assert found.found == "cdi_spec_dirs: /etc/cdi, /var/run/cdi"
    assert "--cdi-dir" in found.mend


def test_crio_has_cdi_always_and_its_last_file_wins():
    assert crio_cdi([]) == CdiConfig(True)
    first = {"crio": {"runtime": {"cdi_spec_dirs": ["/a"]}}}
    second = {"crio": {"runtime": {"cdi_spec_dirs": ["/b"]}}}
    assert crio_cdi([first, second, {"crio": {}}]) == CdiConfig(True, ("/b",))


def test_containerds_imports_are_followed(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('version = 3\nimports = ["conf.d/*.toml", "/nowhere/*.toml"]\n')
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "cdi.toml").write_text(
        f'[plugins."{V3}"]\nenable_cdi = true\ncdi_spec_dirs = ["{tmp_path}/cdi"]\n'
    )
    found = levels(runtime.check(tmp_path / "cdi", config, tmp_path / "crio"))
    assert found["containerd reads CDI"] == "ok"
    assert found[f"containerd reads {tmp_path}/cdi"] == "ok"
    assert found["CDI folder"] == "ok"
    assert not (tmp_path / "cdi").exists()


def test_crios_drop_ins_are_read_and_a_link_is_followed(tmp_path):
    (tmp_path / "crio" / "crio.conf.d").mkdir(parents=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "crio" / "crio.conf.d" / "10-cdi").write_text(
        f'[crio.runtime]\ncdi_spec_dirs = ["{tmp_path}/link"]\n'
    )
    found = levels(runtime.check(tmp_path / "real", tmp_path / "none", tmp_path / "crio"))
    assert found[f"CRI-O reads {tmp_path}/real"] == "ok"


def test_a_configuration_that_is_not_toml_fails_with_its_name(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("version = = 3")
    found = {each.check: each for each in runtime.check(tmp_path, config, tmp_path / "crio")}
    assert found["containerd configuration"].level == "fail"
    assert str(config) in found["containerd configuration"].found


def test_a_node_without_a_trace_of_a_runtime_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "CONTAINERD_SOCKET", tmp_path / "containerd.sock")
    found = levels(runtime.check(tmp_path, tmp_path / "none", tmp_path / "crio"))
    assert found["container runtime"] == "warn"


def test_a_file_in_place_of_the_cdi_folder_fails(tmp_path):
    (tmp_path / "cdi").touch()
    assert runtime.check_folder(tmp_path / "cdi").level == "fail"
    assert runtime.check_folder(tmp_path / "cdi" / "below").level == "fail"


# Hardware --------------------------------------------------------------------------------


def test_cards_on_the_bus_that_nvml_does_not_list_fail():
    assert hardware.judge_bus(()).level == "ok"
    found = hardware.judge_bus([PciAddress("0000:3b:00.0")])
    assert found.level == "fail"
    assert "0000:3b:00.0" in found.found


def test_a_card_that_does_not_answer_is_a_finding_of_its_own():
    silent = UnreadableGpu(1, PciAddress("0000:3b:00.0"), "GPU_IS_LOST")
    (found,) = hardware.judge_cards(Inventory("580.1", (13, 0), (), (silent,)))
    assert (found.check, found.level, found.found) == ("card 0000:3b:00.0", "fail", "GPU_IS_LOST")


def test_a_node_without_cards_is_a_warning():
    (found,) = hardware.judge_cards(Inventory("580.1", (13, 0), ()))
    assert found.level == "warn"


# Kubelet ---------------------------------------------------------------------------------


def settings(root: Path, **more: Any) -> Settings:
    return Settings("node-1", kubelet_root=root / "k", cdi_dir=root / "cdi", **more)


def test_folders_of_a_kubelet_are_fine_and_are_not_made(short_root):
    (short_root / "k" / "pods").mkdir(parents=True)
    before = snapshot(short_root)
    found = kubelet.check(settings(short_root))
    assert {each.level for each in found} == {"ok"}
    assert snapshot(short_root) == before


def test_a_root_that_no_kubelet_used_is_a_warning_and_a_missing_one_fails(short_root):
    missing = levels(kubelet.check(settings(short_root)))
    assert missing["kubelet root"] == "fail"
    (short_root / "k").mkdir()
    assert levels(kubelet.check(settings(short_root)))["kubelet root"] == "warn"


def test_a_socket_path_that_is_too_long_fails_with_its_cure(short_root):
    (short_root / "k" / "pods").mkdir(parents=True)
    found = kubelet.check(settings(short_root, driver_name="d" * 90 + ".example.com"))
    failed = next(each for each in found if each.check == "socket paths")
    assert failed.level == "fail"
    assert "--plugin-dir" in failed.mend


def test_an_instance_that_runs_without_a_socket_is_a_warning(short_root):
    folder = short_root / "k" / "plugins" / "gpu.aliquot.dev"
    folder.mkdir(parents=True)
    with (folder / "dra.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert levels(kubelet.check(settings(short_root)))["running instance"] == "warn"
        (folder / "dra.sock").touch()
        assert levels(kubelet.check(settings(short_root)))["running instance"] == "ok"


def test_leftovers_are_found_and_left(short_root):
    setup = settings(short_root)
    Journal.open(setup.journal_dir).put(record(1, 1, name="mine"))
    quarantine = setup.journal_dir / "quarantine"
    quarantine.mkdir()
    (quarantine / "00000002-0000-4000-8000-000000000000.json.1").write_text("torn")
    setup.cdi_dir.mkdir()
    (setup.cdi_dir / "gpu.aliquot.dev-claim_stray.json").write_text("{}")
    (setup.cdi_dir / "nvidia.yaml").write_text("another vendor's")
    before = snapshot(short_root)
    found = kubelet.check_leftovers(setup)
    assert levels(found) == {
        "records": "ok",
        "record 00000002-0000-4000-8000-000000000000.json.1": "fail",
        "claim default/mine": "warn",
        "CDI files": "warn",
    }
    assert "stray" in found[-1].found
    assert "nvidia" not in found[-1].found
    assert snapshot(short_root) == before


# Policy ----------------------------------------------------------------------------------


def test_every_problem_of_the_policy_is_a_finding(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("taintEffect: Never\norphanGraceSeconds: -1\n")
    found = policy.check(path, "node-1", no_cards)
    assert [each.level for each in found] == ["fail", "fail"]
    assert {"taintEffect" in each.found for each in found} == {True, False}
    path.write_text("taintEffect: NoExecute\n")
    assert [each.level for each in policy.check(path, "node-1", no_cards)] == ["ok"]
    assert [each.level for each in policy.check(None, "node-1", no_cards)] == ["ok"]


def no_cards() -> Inventory:
    raise NvmlMissingError("nvmlInit_v2", "DRIVER_NOT_LOADED")


# Paths that this user may not look at ----------------------------------------------------


def closed(path: Path, *_: Any, **__: Any) -> Any:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_configuration_that_is_closed_to_us_fails_and_asks_for_root(tmp_path, monkeypatch):
    config = tmp_path / "config.toml"
    config.write_text("version = 3\n")
    monkeypatch.setattr(Path, "read_text", closed)
    found = {each.check: each for each in runtime.check(tmp_path, config, tmp_path / "crio")}
    assert found["containerd configuration"].level == "fail"
    assert "run as root" in found["containerd configuration"].mend


def test_what_cannot_be_looked_at_may_be_there(tmp_path, monkeypatch):
    assert folders.unwritable(tmp_path / "new" / "newer") == ""
    assert folders.told(tmp_path / "new").endswith("new will be made")
    monkeypatch.setattr(Path, "stat", closed)
    assert folders.present(tmp_path / "new")
    monkeypatch.setattr("cli.checks.folders.os.access", lambda path, mode: False)
    assert folders.unwritable(tmp_path).endswith("is not writable")
