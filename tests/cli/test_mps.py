import json
import os
import signal
import subprocess
import sys

import pytest

from mps.client import MpsClient
from mps.protocol import MIB, CardSpec
from mps.settings import Settings
from tests.mps.rig import Rig, gpu
from tests.polling import eventually_sync


@pytest.fixture
def served(short_root):
    """A supervisor started by the command, with a card and a namespace."""
    rig = Rig(short_root, "615")
    words = rig.command()
    words[:2] = ["-m", "cli.main", "mps", "serve"]
    with rig.popen(words) as process:
        rig.await_socket(process)
        client = MpsClient(rig.settings.socket_path)
        client.ensure(CardSpec(gpu(0), 80000 * MIB, None, 3))
        client.ensure_namespace(gpu(0), "claim_0", 14336 * MIB, 25)
        yield rig
        process.terminate()
        assert process.wait() == 0
    rig.end()


def test_status_shows_cards_and_their_limits(aliquot, served):
    result = aliquot("mps", "status", "--run-dir", served.settings.run_dir)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("supervisor: process ")
    assert lines[1].endswith(
        "version 615, protocol 2 and 3, several users at once"
        if os.geteuid() == 0
        else "version 615, protocol 2 and 3, one user at a time"
    )
    assert lines[2] == "served: 1 card"
    (card,) = (line.split() for line in lines if line.startswith(gpu(0)))
    assert card[3:] == ["80000Mi", "-", "3", "0", "ok"]
    (claim,) = (line.split() for line in lines if line.startswith("  claim_0"))
    assert claim == ["claim_0", "14336Mi", "25%"]


def test_status_tells_of_a_failure_and_exits_1(aliquot, served):
    pid = served.client.cards()[0].pid
    served.knobs(exits=3)
    os.kill(pid, signal.SIGKILL)
    eventually_sync(lambda: "status 3" in (served.client.cards()[0].failure or ""))
    result = aliquot("mps", "status", "--socket", served.settings.socket_path)
    assert result.exit_code == 1
    assert "exited with status 3 when it was started" in result.output
    served.knobs()


def test_status_as_json(aliquot, served):
    result = aliquot("mps", "status", "--run-dir", served.settings.run_dir, "-o", "json")
    found = json.loads(result.output)
    assert found["supervisor"]["version"] == "615"
    assert found["cards"][0]["namespaces"][0]["name"] == "claim_0"


def test_status_without_a_program_says_why(aliquot, short_root):
    rig = Rig(short_root)
    rig.program.unlink()
    with rig.process():
        result = aliquot("mps", "status", "--run-dir", rig.settings.run_dir)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    used = "cannot be used, so no card can be shared by MPS"
    assert lines[1] == f"control program: {rig.program}: {used}"
    assert lines[2].startswith(f"fail  control program {rig.program} is not there")
    assert "user" not in lines[1] + lines[2]


def test_status_without_a_supervisor_says_where_to_look(aliquot, tmp_path):
    result = aliquot("mps", "status", "--run-dir", tmp_path)
    assert result.exit_code == 1
    assert "there is no such socket; look at the MPS supervisor" in result.output


WRONG = [
    (["--run-dir", "run"], "--run-dir: got 'run', want an absolute path"),
    (["--state-dir", "./state"], "--state-dir: got 'state', want an absolute path"),
    (["--socket", "s"], "--socket: got 's', want an absolute path"),
    (["--control-program", "mps"], "--control-program: got 'mps', want an absolute path"),
    (["--driver-root", "drivers"], "--driver-root: got 'drivers', want an absolute path"),
    (["--cgroup-root", "cgroup"], "--cgroup-root: got 'cgroup', want an absolute path"),
    (["--probe-interval", "nan"], "--probe-interval: got nan, want 0.1 to 86400 seconds"),
    (["--start-timeout", "inf"], "--start-timeout: got inf, want 0.1 to 86400 seconds"),
    (["--probe-timeout=-1"], "--probe-timeout: got -1, want 0.1 to 86400 seconds"),
    (["--settle", "0"], "--settle: got 0, want 0.1 to 86400 seconds"),
    (["--quit-timeout", "11"], "--quit-timeout: got 11, want 0 to 10 seconds"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_serve_refuses_what_it_cannot_use(aliquot, monkeypatch, arguments, said):
    monkeypatch.setattr("mps.main.run", lambda settings: pytest.fail(f"served {settings}"))
    result = aliquot("mps", "serve", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_without_the_command_line_tool_the_same_is_refused_at_once():
    wrong = [word for arguments, _ in WRONG for word in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "mps", *wrong], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert [said for _, said in WRONG if said not in done.stderr] == []


def test_the_defaults_are_none_of_these():
    assert [*Settings().mistakes()] == []
    assert [*Settings(cgroup_root=None).mistakes()] == []
