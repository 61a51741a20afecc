"""One supervisor in this process, the stand-in as control program."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from mps import proc
from mps.protocol import MIB, CardState, MpsRefusedError, Namespace
from mps.standin.install import install
from tests.mps.rig import ROOT, gpu, spec
from tests.polling import eventually_sync


def front(rig, state, *lines):
    """What the card's daemon answers to a front end of ours."""
    done = subprocess.run(
        [str(rig.program)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(state.pipe_directory)},
    )
    return done.stdout.splitlines()


def only(supervisor):
    (state,) = supervisor.cards()
    return state


def test_a_card_is_served_with_its_defaults(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
        assert state.running
        assert state.failure is None
        assert state.restarts == 0
        asked = ("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0")
        assert front(rig, state, *asked) == ["25.0", "14G"]
        assert rig.daemons() == [state.pid]
        assert proc.environment(state.pid)["CUDA_VISIBLE_DEVICES"] == gpu(0)
        assert one.ensure(spec()) == state
        assert one.cards() == (state,)
        one.stop(gpu(0))
        assert one.cards() == ()
    assert rig.processes() == []
    assert rig.traces() == []


def test_stopping_what_is_not_served_is_fine(rig):
    with rig.supervisor() as one:
        one.stop(gpu(0))
        one.ensure(spec())
        one.stop(gpu(0))
        one.stop(gpu(0))
        assert one.namespaces(gpu(0)) == ()
    assert rig.traces() == []


def test_a_card_without_limits_has_the_programs_own(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec(memory=None, percent=None))
        asked = ("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0")
        assert front(rig, state, *asked) == ["100.0"]


def test_other_limits_of_a_served_card_are_refused(rig):
    with rig.supervisor() as one:
        before = one.ensure(spec())
        with pytest.raises(MpsRefusedError, match=r"is served with 14336MiB, 25 %.*stop it first"):
            one.ensure(spec(percent=30))
        with pytest.raises(MpsRefusedError, match="not with no memory limit, 100 %"):
            one.ensure(spec(memory=None, percent=None))
        assert one.cards() == (before,)


def test_directories_have_the_modes_that_mps_needs(rig):
    with rig.supervisor() as one:
        pipe = one.ensure(spec()).pipe_directory
        modes = {p: stat.S_IMODE((pipe.parent / p).stat().st_mode) for p in ("pipe", "log", "shm")}
        assert modes == {"pipe": 0o755, "log": 0o700, "shm": 0o1777}
        assert stat.S_IMODE(pipe.parent.stat().st_mode) == 0o711
        assert stat.S_IMODE(rig.settings.run_dir.stat().st_mode) == 0o711
        assert stat.S_IMODE(rig.settings.state_dir.stat().st_mode) == 0o700


def test_a_daemon_is_in_a_session_of_its_own_with_nothing_open_of_ours(rig):
    kept, given = os.pipe()
    os.set_inheritable(given, True)
    with rig.supervisor() as one:
        state = one.ensure(spec())
        pid = state.pid
        assert os.getsid(pid) == pid
        links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        ours = {link for link in links if not link.startswith("socket:")}
        log = str(state.pipe_directory.parent / "log" / "control.log")
        assert ours <= {"/dev/null", log, str(state.pipe_directory / "control_lock")}
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    os.close(kept)
    os.close(given)


def test_a_dead_daemon_is_told_of_and_comes_back(rig):
    with rig.supervisor() as one:
        before = one.ensure(spec())
        revision, _ = one.changes(0, 0)
        os.kill(before.pid, signal.SIGKILL)
        seen: list[CardState] = []
        while not seen or seen[-1].failure is not None:
            revision, (state,) = one.changes(revision, 10)
            seen.append(state)
        assert not seen[0].running
        assert seen[0].failure == f"control daemon {before.pid} was killed by SIGKILL"
        assert any(one.running and one.failure for one in seen)  # visible though it is back
        assert (seen[-1].running, seen[-1].restarts) == (True, 1)
        assert seen[-1].pid != before.pid
        assert seen[-1].pipe_directory.stat().st_ino == before.pipe_directory.stat().st_ino
        asked = front(rig, seen[-1], "get_default_active_thread_percentage")
        assert asked == ["25.0"]


def test_a_daemon_that_keeps_dying_is_tried_in_growing_pauses(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
        rig.knobs(exits=3)
        os.kill(state.pid, signal.SIGKILL)
        eventually_sync(lambda: "exited with status 3" in (only(one).failure or ""))
        assert not only(one).running
        with pytest.raises(MpsRefusedError, match="exited with status 3"):
            one.ensure(spec())  # tries at once
        assert only(one).restarts == 1
        rig.knobs()
        assert one.ensure(spec()).running
        eventually_sync(lambda: only(one).failure is None)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"exits": 0}, "exited with status 0 when it was started"),
        ({"exits": 7}, "exited with status 7 when it was started"),
        ({"hang": "start"}, "was not ready in 2 s: it did not open its socket"),
        ({"hang": "answer"}, "was not ready in 2 s: no answer to"),
        (
            {"ignores": ["set_default_device_pinned_mem_limit"]},
            "memory limit unset, wanted 14336M",
        ),
        ({"ignores": ["get_default_active_thread_percentage"]}, "no|float|wanted"),
    ],
)
def test_a_program_that_misbehaves_is_told_of_and_nothing_is_left(rig, knobs, said):
    if "hang" in knobs:
        rig.change(start_timeout_s=2.0, probe_timeout_s=1.0)
    with rig.supervisor() as one:
        one.info()  # explored while it behaved
        rig.knobs(**knobs)
        with pytest.raises(MpsRefusedError, match=said):
            one.ensure(spec())
        assert one.cards() == ()
        assert rig.processes() == []
        assert rig.traces() == []


def test_a_slow_start_is_waited_for(rig):
    with rig.supervisor() as one:
        one.info()
        rig.knobs(slow_start_s=0.5)
        assert one.ensure(spec()).running


def test_a_card_whose_start_hangs_holds_up_no_other(rig):
    rig.change(start_timeout_s=60.0)
    with rig.supervisor() as one:
        one.info()
        one.ensure(spec(1))
        rig.knobs(hang="start")
        failed: list[str] = []
        hanging = threading.Thread(target=_expect_refusal, args=(one, failed))
        hanging.start()
        eventually_sync(lambda: "Hanging" in _control_logs(rig))
        rig.knobs()
        assert one.ensure(spec(2)).running
        assert one.ensure(spec(1)).running
        assert hanging.is_alive()
        stuck = next(pid for pid in rig.daemons() if gpu(0) in str(proc.environment(pid)))
        os.kill(stuck, signal.SIGTERM)
        hanging.join(30)
        assert "was killed by SIGTERM" in failed[0]


def _control_logs(rig):
    return "".join(log.read_text() for log in rig.settings.run_dir.glob("*/log/control.log"))


def _expect_refusal(supervisor, failed):
    try:
        supervisor.ensure(spec(0))
    except MpsRefusedError as error:
        failed.append(str(error))


def test_a_missing_program_is_told_of_until_it_is_there(rig):
    program = rig.program
    program.unlink()
    with rig.supervisor() as one:
        assert one.info().protocols == ()
        assert f"control program {program} is not there" in (one.info().failure or "")
        with pytest.raises(MpsRefusedError, match="is not there; install"):
            one.ensure(spec())
        assert rig.traces() == []
        install(program.parent, "550")
        assert (one.info().version, one.info().multi_user) == ("550", False)
        assert one.ensure(spec()).running
        install(program.parent, "555")  # the driver is upgraded below us
        assert (one.info().version, one.info().multi_user) == ("555", True)


def test_a_program_that_cannot_be_executed_is_told_of(rig):
    rig.program.chmod(0o644)
    with rig.supervisor() as one, pytest.raises(MpsRefusedError, match="is not executable"):
        one.ensure(spec())
    rig.program.chmod(0o755)
    rig.program.write_text("#!/nowhere/python\n")
    with rig.supervisor() as one, pytest.raises(MpsRefusedError, match="does not work: it exited"):
        one.ensure(spec())


def test_a_program_that_hangs_is_told_of(rig):
    rig.change(start_timeout_s=0.3)
    rig.knobs(hang="start")
    with rig.supervisor() as one:
        assert "was not ready in 0.3 s" in (one.info().failure or "")
        assert one.info().version is None
    assert rig.processes() == []


@pytest.mark.parametrize(
    ("version", "protocols", "multi_user"),
    [
        ("535", (2,), False),
        ("550", (2,), False),
        ("555", (2,), True),
        ("580", (2,), True),
        ("615", (2, 3), True),
    ],
)
def test_it_finds_out_what_the_program_can_do(rig, version, protocols, multi_user):
    install(rig.program.parent, version)
    with rig.supervisor() as one:
        info = one.info()
        assert sorted(os.listdir(rig.settings.run_dir)) == ["supervisor.lock"]
    wanted = multi_user and os.geteuid() == 0
    assert (info.version, info.protocols, info.multi_user) == (version, protocols, wanted)
    assert (info.pid, info.program) == (os.getpid(), str(rig.program))


def test_defaults_that_somebody_changed_are_set_again(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
        front(rig, state, "set_default_active_thread_percentage 90")
        eventually_sync(lambda: "thread percentage 90.0, wanted 25" in (only(one).failure or ""))
        assert only(one).running
        assert front(rig, state, "get_default_active_thread_percentage") == ["25.0"]
        eventually_sync(lambda: only(one).failure is None)
        assert only(one).pid == state.pid


def test_a_server_that_cannot_run_is_told_of(rig):
    rig.knobs(server_fails=True)
    with rig.supervisor() as one:
        state = one.ensure(spec())
        front(rig, state, "start_server -uid 0")
        eventually_sync(lambda: "exited with status 1; see" in (only(one).failure or ""))
        assert only(one).running
        eventually_sync(lambda: only(one).failure is None)


def test_a_daemon_that_does_not_answer_is_replaced_when_it_has_no_servers(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
    rig.change(probe_timeout_s=1.0, probe_interval_s=0.05)
    os.kill(state.pid, signal.SIGSTOP)
    with rig.supervisor() as one:
        eventually_sync(lambda: (only(one).failure or "").startswith("it does not answer"))
        eventually_sync(lambda: only(one).pid not in (None, state.pid))
        assert only(one).restarts == 1


def test_a_daemon_that_does_not_answer_is_left_to_its_clients(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
        front(rig, state, "start_server -uid 0")
    rig.change(probe_timeout_s=1.0, probe_interval_s=0.05)
    with rig.supervisor() as one:
        os.kill(state.pid, signal.SIGSTOP)
        eventually_sync(lambda: not only(one).running)
        with pytest.raises(MpsRefusedError, match="it does not answer"):
            one.ensure(spec())
        revision, _ = one.changes(0, 0)
        one.changes(revision, 0.5)
        assert only(one).pid == state.pid
        os.kill(state.pid, signal.SIGCONT)
        eventually_sync(lambda: only(one).running)
        eventually_sync(lambda: only(one).failure is None)
        assert (only(one).pid, only(one).restarts) == (state.pid, 0)


def test_servers_of_a_dead_daemon_are_ended_before_the_next_one(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
        front(rig, state, "start_server -uid 0")
        (server,) = set(rig.processes()) - {state.pid}
        os.kill(state.pid, signal.SIGKILL)
        eventually_sync(lambda: only(one).pid not in (None, state.pid))
        assert proc.start_of(server) is None


def test_a_stop_takes_servers_and_clients_along(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
        front(rig, state, "standin_connect 4711 0 train.py", "ps")
        assert len(rig.processes()) == 2
        one.stop(gpu(0))
        assert rig.processes() == []


def test_a_stop_of_a_daemon_that_hangs_succeeds(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
    rig.change(probe_timeout_s=0.3, quit_timeout_s=0)
    os.kill(state.pid, signal.SIGSTOP)
    with rig.supervisor() as one:
        one.stop(gpu(0))
    assert rig.processes() == []
    assert rig.traces() == []


def test_protocol_3_is_refused_where_the_program_lacks_it(rig):
    with rig.supervisor() as one:
        with pytest.raises(MpsRefusedError, match=r"version 580\); it came with R615"):
            one.ensure(spec(protocol=3))
        one.ensure(spec(1))
        with pytest.raises(MpsRefusedError, match="served with protocol 2; namespaces need 3"):
            one.ensure_namespace(gpu(1), Namespace("a", None, None))
        with pytest.raises(MpsRefusedError, match="is not served; call ensure first"):
            one.ensure_namespace(gpu(2), Namespace("a", None, None))
        one.delete_namespace(gpu(1), "a")


def test_namespaces_have_limits_of_their_own(rig3):
    with rig3.supervisor() as one:
        state = one.ensure(spec(protocol=3))
        first = Namespace("claim_1_0", 1536 * MIB, 10)
        folder = one.ensure_namespace(gpu(0), first)
        assert folder == str(state.pipe_directory / "card" / "claim_1_0")
        assert os.path.isdir(folder)
        assert one.ensure_namespace(gpu(0), first) == folder
        other = Namespace("claim_2_0", None, None)
        one.ensure_namespace(gpu(0), other)
        assert one.namespaces(gpu(0)) == (first, other)
        one.delete_namespace(gpu(0), "claim_1_0")
        one.delete_namespace(gpu(0), "claim_1_0")
        assert not os.path.exists(folder)
        assert one.namespaces(gpu(0)) == (other,)
        one.stop(gpu(0))
    assert rig3.traces() == []


def test_a_namespace_that_takes_other_limits_is_refused_and_removed(rig3):
    with rig3.supervisor() as one:
        one.ensure(spec(protocol=3))
        one.ensure_namespace(gpu(0), Namespace("a", 1024 * MIB, 10))
        rig3.knobs(ignores=["set"])
        state = only(one)
        os.kill(state.pid, signal.SIGKILL)  # knobs are read at the start
        eventually_sync(lambda: "took other" in (only(one).failure or ""))
        rig3.knobs()
        one.ensure(spec(protocol=3))
        with pytest.raises(MpsRefusedError, match="namespace a took other limits"):
            one.ensure_namespace(gpu(0), Namespace("a", None, 10))
        assert one.namespaces(gpu(0)) == (Namespace("a", 1024 * MIB, 10),)


def test_namespaces_come_back_with_their_daemon(rig3):
    with rig3.supervisor() as one:
        state = one.ensure(spec(protocol=3))
        one.ensure_namespace(gpu(0), Namespace("a", 2048 * MIB, 10))
        os.kill(state.pid, signal.SIGKILL)
        eventually_sync(lambda: only(one).pid not in (None, state.pid))
        listed = subprocess.run(
            [str(rig3.program), "namespace", "list", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(state.pipe_directory)},
        )
        assert listed.stdout.splitlines()[1].startswith("a,card,Ready,2G,10,")


def test_a_second_supervisor_is_refused_by_name(rig):
    with rig.supervisor():
        done = subprocess.run(
            [sys.executable, *rig.command()],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert f"another supervisor (process {os.getpid()}) holds" in done.stderr
        assert "--run-dir and a --state-dir of its own" in done.stderr


def test_waiting_for_changes_ends_with_the_time(rig):
    with rig.supervisor() as one:
        revision, cards = one.changes(0, 0)
        assert cards == ()
        assert one.changes(revision, 0.05) == (revision, ())
        assert revision > time.time_ns() // 2_000_000


def test_a_full_disk_is_told_of_and_changes_nothing(rig, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/state/x")

    with rig.supervisor() as one:
        one.ensure(spec(1))
        monkeypatch.setattr("mps.files.write", full)
        with pytest.raises(MpsRefusedError, match=r"No space left on device.*--state-dir"):
            one.ensure(spec(0))
        assert [state.spec.gpu for state in one.cards()] == [gpu(1)]
        dead = only(one).pid
        os.kill(dead, signal.SIGKILL)
        eventually_sync(lambda: only(one).pid not in (None, dead), "it is back all the same")
        with pytest.raises(MpsRefusedError, match="No space left"):
            one.stop(gpu(1))
        monkeypatch.undo()
        one.stop(gpu(1))
    assert rig.traces() == []
