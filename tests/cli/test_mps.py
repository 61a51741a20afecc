import json
import os
import signal

import pytest

from mps.client import MpsClient
from mps.protocol import MIB, CardSpec
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
