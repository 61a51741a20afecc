"""What doctor says of shares."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from cli.checks import sharing
from driver.model.ids import GpuUuid
from driver.settings import Settings
from driver.sim import cgroups, control, seam, setup
from mps.protocol import CardSpec
from tests.hw.supervisor import INFO, FakeSupervisor

ONE, TWO = (GpuUuid(f"GPU-{n:08x}-0000-4000-8000-000000000000") for n in (1, 2))


def levels(findings):
    return {each.check: each.level for each in findings}


def test_a_supervisor_that_works_is_fine():
    (found,) = sharing.judge_supervisor(INFO)
    assert (found.level, "driver branch 615, protocol 2 and 3" in found.found) == ("ok", True)


def test_a_program_that_is_missing_is_said():
    info = replace(INFO, protocols=(), failure="there is no /usr/bin/x", version=None)
    (found,) = sharing.judge_supervisor(info)
    assert (found.level, found.found) == ("warn", "there is no /usr/bin/x")
    (found,) = sharing.judge_supervisor(replace(info, failure=None))
    assert "does not work" in found.found


def test_one_user_at_a_time_is_said():
    found = sharing.judge_supervisor(replace(INFO, multi_user=False, version=None))
    assert [each.level for each in found] == ["ok", "warn"]


def test_daemons_are_compared_with_the_records():
    supervisor = FakeSupervisor()
    for gpu in (ONE, TWO):
        supervisor.ensure(CardSpec(gpu, None, 100, 2))
    states = supervisor.cards()
    assert levels(sharing.judge_daemons(states, {ONE, TWO})) == {"MPS daemons": "ok"}
    assert levels(sharing.judge_daemons(states, {ONE})) == {f"MPS of card {TWO}": "warn"}
    assert levels(sharing.judge_daemons(states[:1], {ONE, TWO})) == {f"MPS of card {TWO}": "fail"}
    supervisor.die(ONE, "killed")
    (found,) = sharing.judge_daemons(supervisor.cards(), {ONE, TWO})
    assert (found.level, found.found) == ("fail", "killed")


def test_modes_that_are_left_behind_are_named():
    (found,) = sharing.judge_modes({ONE: 3, TWO: 0}, ())
    assert (found.level, ONE in found.check) == ("warn", True)
    assert levels(sharing.judge_modes({ONE: 3}, {ONE})) == {"compute modes": "ok"}


def test_somebody_elses_daemon_is_found(tmp_path):
    root = Path("/tmp") / f"aqd-{tmp_path.stat().st_ino}"  # noqa: S108 - short
    folder = root / "tmp/nvidia-mps"
    folder.mkdir(parents=True)
    assert sharing.check_default_pipes(root).level == "ok"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control"))
        listener.listen()
        found = sharing.check_default_pipes(root)
    assert (found.level, str(folder) in found.mend) == ("warn", True)
    (folder / "control").unlink()
    for each in (folder, folder.parent, root):
        each.rmdir()


@pytest.fixture
def settings(tmp_path):
    setup.create(tmp_path / "sim", "h100-80gb", 1)
    seam.install(tmp_path / "sim")
    yield Settings(
        node_name="n",
        kubelet_root=tmp_path,
        cdi_dir=tmp_path / "cdi",
        simulate="h100-80gb:1",
        simulate_root=tmp_path / "sim",
        cgroup_root=tmp_path / "cgroup",
        mps_socket=tmp_path / "none.sock",
    )
    seam.uninstall()


def test_a_node_without_a_supervisor_is_told_how_to_get_one(settings):
    found = {each.check: each for each in sharing.check(settings)}
    assert found["MPS supervisor"].level == "warn"
    assert "aliquot mps serve" in found["MPS supervisor"].mend
    assert found["time slices"].level == "ok"
    assert found["compute modes"].level == "ok"
    control.set_smi(settings.simulate_root, "old")
    found = {each.check: each for each in sharing.check(settings)}
    assert (found["time slices"].level, "Invalid" in found["time slices"].found) == ("warn", True)


def test_none_is_wanted(settings):
    found = {each.check: each for each in sharing.check(replace(settings, mps_socket=None))}
    assert found["MPS supervisor"].level == "ok"


def test_a_supervisor_that_answers_is_looked_at(settings, monkeypatch):
    monkeypatch.setattr(sharing, "MpsClient", lambda _socket, _timeout: FakeSupervisor())
    found = levels(sharing.check(settings))
    assert (found["MPS supervisor"], found["MPS daemons"]) == ("ok", "ok")


def test_without_nvml_the_rest_is_said(settings):
    control.set_library(settings.simulate_root, "missing")
    assert "time slices" not in levels(sharing.check(settings))


def pod_limits(settings):
    (found,) = (e for e in sharing.check(settings) if e.check == "memory limits by cgroup")
    return found.level, found.found


def test_whether_pods_can_be_limited_is_said(settings):
    root = settings.simulate_root
    assert pod_limits(settings) == (
        "ok",
        "not offered: the NVIDIA driver is 580.105.08, R615 has it first",
    )
    control.set_driver_version(root, "615.71.09")
    level, text = pod_limits(settings)
    assert (level, "is not a cgroup v2 hierarchy" in text) == ("warn", True)
    cgroups.make_root(settings.cgroup_root)
    assert pod_limits(settings) == (
        "ok",
        "driver 615.71.09 can limit pods, their cgroups are there",
    )
    control.set_mig_mode(root, 0, on=True)
    assert pod_limits(settings) == ("ok", "no card that is not in MIG mode tells now")
