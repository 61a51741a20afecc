import fcntl
import json
import os
from dataclasses import replace

import pytest

from driver.model.mig import Placement
from driver.model.shares import Limits, Share
from driver.model.steps import TimeSliceInterval
from driver.model.units import Bytes
from driver.plan.cdi import spec_file_name
from driver.state.journal import Journal
from mps.protocol import CardSpec
from tests.cli.snapshots import snapshot
from tests.hw.supervisor import INFO, FakeSupervisor
from tests.state.builders import gpu, record, uid

DRIVER = "gpu.aliquot.dev"
GPU = "GPU-00000000-0000-4000-8000-000000000000"


@pytest.fixture
def node(tmp_path):
    """A plugin folder with two claims, and the CDI file of the first."""
    folder = tmp_path / "plugins" / DRIVER
    journal = Journal.open(folder / "claims")
    journal.put(record(1, 1, 2, name="two"))
    journal.put(record(2, 3, name="one"))
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    (cdi / spec_file_name(DRIVER, uid(1))).write_text("{}")
    return tmp_path


def options(node, *more):
    return ("node", "status", "--kubelet-root", node, "--cdi-dir", node / "cdi", *more)


def test_it_shows_who_holds_what(aliquot, node):
    result = aliquot(*options(node))
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == f"plugin folder {node}/plugins/{DRIVER}"
    assert lines[1].startswith("running: no")
    assert lines[2] == "prepared: 2 claims"
    one = next(line for line in lines if line.startswith("default/one"))
    assert uid(2) in one
    assert gpu(3) in one
    assert one.endswith("missing")
    assert "PrepareCompleted" in one
    two = next(i for i, line in enumerate(lines) if line.startswith("default/two"))
    assert lines[two].endswith("present")
    assert gpu(2) in lines[two + 1]


def test_a_partition_is_shown_with_its_memory_slices(aliquot, node):
    journal = Journal.open(node / "plugins" / DRIVER / "claims")
    one = record(3, 4, name="part")
    held = replace(one.held[0], type="mig", placement=Placement(4, 4), profile="3g.40gb")
    journal.put(replace(one, held=(held,)))
    lines = aliquot(*options(node)).output.splitlines()
    assert any(f"{gpu(4)} [4-7]" in line for line in lines)
    found = json.loads(aliquot(*options(node, "-o", "json")).output)["claims"][1]
    (told,) = found["devices"]
    assert (told["profile"], told["placement"]) == ("3g.40gb", {"start": 4, "size": 4})


def test_json_has_every_field(aliquot, node):
    found = json.loads(aliquot(*options(node, "-o", "json")).output)
    assert found["runningInstance"] is None
    assert found["damaged"] == []
    claim = found["claims"][1]
    assert (claim["namespace"], claim["name"], claim["uid"]) == ("default", "two", uid(1))
    assert [each["gpu"] for each in claim["devices"]] == [gpu(1), gpu(2)]
    assert claim["cdiFilePresent"] is True
    assert claim["since"].endswith("+00:00")


def test_damaged_files_are_listed_and_left_where_they_are(aliquot, node):
    claims = node / "plugins" / DRIVER / "claims"
    path = claims / f"{uid(1)}.json"
    path.write_bytes(path.read_bytes()[:-9])
    (claims / f"{uid(3)}.json").write_bytes(b"")
    (claims / f"{uid(4)}.json").mkdir()
    os.rename(claims / f"{uid(2)}.json", claims / f"{uid(5)}.json")
    (claims / "quarantine").mkdir()
    (claims / "quarantine" / f"{uid(6)}.json.1").write_text("torn")
    before = snapshot(node)
    result = aliquot(*options(node))
    assert result.exit_code == 1
    assert "prepared: 0 claims" in result.output
    for n in (1, 3, 4, 5, 6):
        assert str(uid(n)) in result.output
    assert "changed or cut short" in result.output
    assert "is empty" in result.output
    assert snapshot(node) == before


def test_nothing_is_changed_made_or_removed(aliquot, node):
    claims = node / "plugins" / DRIVER / "claims"
    (claims / f".{uid(9)}.json.abc.tmp").write_text("what a crash left")
    (claims / "notes.txt").write_text("not a record")
    before = snapshot(node)
    assert aliquot(*options(node)).exit_code == 0
    assert snapshot(node) == before


def test_a_running_instance_is_named_and_keeps_its_lock(aliquot, node):
    lock = node / "plugins" / DRIVER / "dra.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = json.loads(aliquot(*options(node, "-o", "json")).output)
        assert found["runningInstance"] in (f"pid {os.getpid()}", "a process")
        with lock.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_lock_file_that_nobody_holds_is_no_running_instance(aliquot, node):
    lock = node / "plugins" / DRIVER / "dra.lock"
    lock.touch()
    assert "running: no" in aliquot(*options(node)).output
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nothing was left held


def test_a_missing_folder_is_said_and_not_made(aliquot, tmp_path):
    result = aliquot(*options(tmp_path))
    assert result.exit_code == 1
    assert f"no plugin folder {tmp_path}/plugins/{DRIVER}" in result.output
    assert "--plugin-dir" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_plugin_folder_without_a_journal_has_nothing_prepared(aliquot, tmp_path):
    (tmp_path / "plugins" / DRIVER).mkdir(parents=True)
    result = aliquot(*options(tmp_path))
    assert result.exit_code == 0
    assert "prepared: 0 claims" in result.output


def test_the_plugin_folder_and_driver_can_be_named(aliquot, tmp_path):
    Journal.open(tmp_path / "here" / "claims").put(record(1, 1))
    result = aliquot("node", "status", "--plugin-dir", tmp_path / "here")
    assert "prepared: 1 claim" in result.output
    (tmp_path / "plugins" / "gpu.example.com").mkdir(parents=True)
    other = aliquot(*options(tmp_path, "--driver-name", "gpu.example.com"))
    assert "plugins/gpu.example.com" in other.output


def test_a_folder_that_cannot_be_read_says_what_to_do(aliquot, node, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("cli.records.os.open", lambda path, flags: refuse(path))
    result = aliquot(*options(node))
    assert result.exit_code == 1
    assert "dra.lock: no permission; run as root" in result.output
    assert "Traceback" not in result.output


def test_a_journal_that_is_a_file_is_an_error_with_its_name(aliquot, tmp_path):
    folder = tmp_path / "plugins" / DRIVER
    folder.mkdir(parents=True)
    (folder / "claims").write_text("")
    result = aliquot(*options(tmp_path))
    assert result.exit_code == 1
    assert f"{folder}/claims" in result.output


def test_shares_and_the_supervisor_are_shown(aliquot, node):
    journal = Journal.open(node / "plugins" / DRIVER / "claims")
    found = record(3, 4, name="share")
    limits = Limits("mpsCooperative", "mpsCooperative")
    shares = (
        ("mps", Share(Bytes(14 << 30), 25, limits)),
        ("mps", Share(Bytes(1 << 30), 0, limits)),
        ("timeslice", Share(Bytes(0), 0, limits, interval=TimeSliceInterval.LONG)),
        ("timeslice", Share(Bytes(2 << 30), 0, limits)),
    )
    for n, (kind, share) in enumerate(shares):
        held = (replace(found.held[0], type=kind, share=share),)
        claim = replace(found.claim, uid=uid(10 + n), name=f"share-{n}")
        journal.put(replace(found, held=held, claim=claim))
    socket = node / "supervisor.sock"
    lines = aliquot(*options(node, "--mps-socket", socket)).output.splitlines()
    texts = ["14Gi 25 %", "1Gi no cap", "a turn", "a turn 2Gi"]
    for n, text in enumerate(texts):
        (line,) = [line for line in lines if line.startswith(f"default/share-{n} ")]
        assert f"{gpu(4)} {text}  " in line
    (told,) = [line for line in lines if line.startswith("MPS: ")]
    assert "there is no such socket" in told
    found = json.loads(aliquot(*options(node, "--mps-socket", socket, "-o", "json")).output)
    (first,) = [one for one in found["claims"] if one["name"] == "share-2"]
    assert first["devices"][0]["share"]["interval"] == "Long"
    assert (
        json.loads(aliquot(*options(node, "--mps-socket", "", "-o", "json")).output)["mps"] is None
    )


@pytest.mark.parametrize("failure", [None, "there is no control program"])
def test_the_supervisor_tells_its_daemons(aliquot, node, monkeypatch, failure):
    supervisor = FakeSupervisor()
    supervisor.ensure(CardSpec(GPU, None, 100, 2))
    supervisor.die(GPU, "killed by signal 9")
    if failure:
        supervisor.told = replace(INFO, protocols=(), failure=failure)
    monkeypatch.setattr("mps.client.MpsClient", lambda _socket, timeout_s: supervisor)
    lines = aliquot(*options(node)).output.splitlines()
    if failure:
        assert f"MPS: {failure}" in lines
    else:
        assert f"MPS: supervisor pid {INFO.pid}, 1 control daemon" in lines
        assert f"  {GPU}: down, killed by signal 9" in lines
