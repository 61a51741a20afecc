"""The socket between driver and supervisor."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mps import main, server
from mps.client import MpsClient
from mps.protocol import MIB, MpsRefusedError, MpsUnreachableError, Namespace, line, message_of
from mps.server import Server, answer
from tests.mps.rig import ROOT, gpu, spec
from tests.polling import eventually_sync


@pytest.fixture
def serving(rig3):
    """A supervisor of this process behind its socket."""
    with rig3.supervisor() as one:
        listening = Server(one, rig3.settings.socket_path)
        listening.open()
        thread = threading.Thread(target=listening.serve)
        thread.start()
        yield rig3
        listening.close()
        thread.join(30)
        assert not thread.is_alive()
        assert not rig3.settings.socket_path.exists()


def raw(rig, data, more=True):
    """What is answered to bytes."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(30)
        one.connect(str(rig.settings.socket_path))
        one.sendall(data)
        if not more:
            one.shutdown(socket.SHUT_WR)
        return one.makefile("rb").read()


def test_every_call_goes_over_the_socket(serving):
    client = serving.client
    assert client.info().pid == os.getpid()
    state = client.ensure(spec(protocol=3))
    assert client.cards() == (state,)
    folder = client.ensure_namespace(gpu(0), "claim_0", 1024 * MIB, 10)
    assert folder == state.pipe_directory / "card" / "claim_0"
    assert client.namespaces(gpu(0)) == (Namespace("claim_0", 1024 * MIB, 10),)
    client.delete_namespace(gpu(0), "claim_0")
    assert client.namespaces(gpu(0)) == ()
    revision, cards = client.changes(0, 5)
    assert cards == (state,)
    os.kill(state.pid, signal.SIGKILL)
    _, (changed,) = client.changes(revision, 30)
    assert not changed.running
    client.stop(gpu(0))
    assert client.cards() == ()


def test_only_root_can_use_the_socket(serving):
    assert stat.S_IMODE(serving.settings.socket_path.stat().st_mode) == 0o600


def test_a_refusal_reaches_the_caller_with_its_text(serving):
    with pytest.raises(MpsRefusedError, match="call ensure first"):
        serving.client.ensure_namespace(gpu(0), "a", None, None)
    with pytest.raises(MpsRefusedError, match="is not the UUID of a GPU"):
        serving.client.stop("../x")


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\n",
        b"[]\n",
        b"{}\n",
        b'{"call":"rm","arguments":{}}\n',
        b'{"call":"ensure","arguments":{}}\n',
        b'{"call":"ensure","arguments":[]}\n',
        b'{"call":"stop","arguments":{"gpu":"../../etc"}}\n',
        b'{"call":"stop","arguments":{"gpu":["GPU"]}}\n',
        b'{"call":"changes","arguments":{"after":"x","wait_s":1}}\n',
        b'{"call":["ensure"],"arguments":{}}\n',
        b"x" * (1 << 16),
    ],
)
def test_bad_requests_are_refused_and_hurt_nobody(serving, data):
    assert message_of(raw(serving, data))["error"]["kind"] == "refused"
    assert serving.client.cards() == ()


def test_a_client_that_leaves_early_is_forgotten(serving):
    assert raw(serving, b'{"call":', more=False) == b""
    assert serving.client.cards() == ()


def test_work_goes_on_when_its_client_gave_up(serving):
    serving.client.info()
    serving.knobs(slow_start_s=0.5)
    hasty = MpsClient(serving.settings.socket_path, timeout_s=0.1)
    with pytest.raises(MpsUnreachableError, match=r"within 0.1 s; the work goes on there"):
        hasty.ensure(spec())
    assert serving.client.ensure(spec()).restarts == 0
    assert len(serving.daemons()) == 1


def test_a_fault_of_ours_is_answered(serving, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("mps.supervisor.Supervisor.cards", broken)
    with pytest.raises(MpsRefusedError, match="the supervisor failed: RuntimeError"):
        serving.client.cards()


def test_too_many_calls_at_once_are_refused(rig, monkeypatch):
    monkeypatch.setattr(server, "MOST_CALLS", 1)
    with rig.supervisor() as one:
        listening = Server(one, rig.settings.socket_path)
        listening.open()
        thread = threading.Thread(target=listening.serve)
        thread.start()
        seen = one.changes(0, 0)[0]

        def wait():
            with contextlib.suppress(MpsRefusedError):  # the other came first
                rig.client.changes(seen, 60.0)
                return
            wait()

        waiting = threading.Thread(target=wait)
        waiting.start()
        refused = []

        def refusal():
            try:
                rig.client.cards()
            except MpsRefusedError as error:
                refused.append(str(error))
            return refused

        eventually_sync(refusal)
        assert "1 calls are at work already" in refused[0]
        one._changes.move()
        waiting.join(30)
        listening.close()
        thread.join(30)


def test_no_supervisor_is_told_with_where_to_look(tmp_path):
    with pytest.raises(MpsUnreachableError, match=r"no such socket; look at the MPS supervisor"):
        MpsClient(tmp_path / "none").cards()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "dead"))
        with pytest.raises(MpsUnreachableError, match="nobody listens there"):
            MpsClient(tmp_path / "dead").cards()


@pytest.mark.parametrize(
    "data", [b"", b"nonsense\n", b"{}\n", b'{"error":{}}\n', b"x" * (3 << 20)]
)
def test_an_answer_of_somebody_else_is_told_of(tmp_path, data):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        bound.listen()
        thread = threading.Thread(target=_say, args=(bound, data))
        thread.start()
        with pytest.raises(MpsUnreachableError, match="s answer"):
            MpsClient(tmp_path / "s", timeout_s=30).cards()
        thread.join(30)


def _say(bound, data):
    connection, _ = bound.accept()
    with connection:
        connection.recv(1 << 16)
        try:
            connection.sendall(data)
        except OSError:
            return  # it had enough


def test_waits_are_bounded(rig):
    with rig.supervisor() as one:
        revision, _ = one.changes(0, 0)
        given = {"after": revision, "wait_s": -5}
        assert answer(one, line({"call": "changes", "arguments": given}))["result"]["cards"] == []


def test_the_process_ends_on_a_signal_and_leaves_its_daemons(rig):
    with rig.process() as process:
        state = rig.client.ensure(spec())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert rig.daemons() == [state.pid]
    assert not rig.settings.socket_path.exists()


def test_a_folder_that_cannot_be_made_ends_the_process_with_the_reason(rig):
    rig.change(state_dir=Path("/proc/nope"))
    done = subprocess.run(
        [sys.executable, *rig.command()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "--state-dir cannot be made: No such file or directory (/proc/nope)" in done.stderr


def test_a_socket_whose_path_is_too_long_ends_the_process_with_the_setting(rig):
    path = rig.root / ("x" * 120)
    command = [sys.executable, *rig.command(), "--socket", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = f"socket {path} has {len(str(path))} bytes, at most 107 are possible; give --socket"
    assert said in done.stderr


def test_a_node_without_cgroups_is_told_what_to_mount(rig, caplog):
    rig.change(cgroup_root=rig.root)
    assert main.run(rig.settings) == 1
    assert "no cgroup hierarchy is mounted at or below" in caplog.text
    assert "--cgroup-root (none:" in caplog.text


def test_it_runs_until_it_is_told_to_end(rig, monkeypatch):
    """The whole of ``run`` in this process; the signal comes by hand."""
    handlers: dict[int, object] = {}
    wakeup: list[int] = []
    monkeypatch.setattr(signal, "signal", handlers.setdefault)
    monkeypatch.setattr(signal, "set_wakeup_fd", wakeup.append)
    monkeypatch.setattr("gc.freeze", lambda: None)
    results = []
    thread = threading.Thread(target=lambda: results.append(main.run(rig.settings)))
    thread.start()
    eventually_sync(rig.settings.socket_path.exists)
    assert rig.client.cards() == ()
    assert handlers.keys() == {signal.SIGTERM, signal.SIGINT}
    os.write(wakeup[0], bytes([signal.SIGTERM]))
    thread.join(60)
    assert wakeup[1:] == [-1]
    assert results == [0]
