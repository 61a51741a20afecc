"""Ended anywhere, the supervisor leaves nothing that its successor does not find."""

import contextlib
import os
import time
from dataclasses import replace

import pytest

from mps import proc
from mps.abilities import Abilities, Explorer
from mps.keeper import Keeper
from mps.layout import card_paths
from mps.protocol import MIB, MpsError, MpsRefusedError, Namespace
from mps.supervisor import Supervisor
from tests.mps.cuts import Cut, cutting, raise_cut
from tests.mps.rig import Rig, ask, gpu, quick_rig, shuffled, spec
from tests.polling import eventually_sync

CLAIM = Namespace("claim_0", 2048 * MIB, 10)
MOST_EDGES = 400
CALLS = (
    lambda client: client.ensure(spec(0)),
    lambda client: client.ensure(spec(1)),
    lambda client: client.stop(gpu(0)),
)


@pytest.fixture(autouse=True)
def explored(monkeypatch):
    """What the programs can do is known: finding it out is tested elsewhere, and slow."""

    def known(explorer):
        has_3 = "615." in explorer._daemon.host.program.file.read_bytes().decode("latin-1")
        return Abilities(options={2: (), 3: ("-p", "3")} if has_3 else {2: ()})

    monkeypatch.setattr(Explorer, "_explore", known)


def ensure(keeper):
    keeper.ensure(spec(), time.monotonic())


def stop(keeper):
    keeper.stop(time.monotonic())


def add(keeper):
    keeper.ensure_namespace(CLAIM, time.monotonic())


def delete(keeper):
    keeper.delete_namespace(CLAIM.name)


def died(keeper):
    os.kill(keeper.pid, 9)
    proc.Process(keeper.pid, proc.start_of(keeper.pid) or 0).wait(5)
    keeper.tick(time.monotonic())


def bare(rig, record=None):
    """The keeper of a card without its thread, so that a cut ends the test's own call."""
    supervisor = Supervisor(rig.settings)
    rig.settings.run_dir.mkdir(exist_ok=True)
    supervisor._node.store.open()
    supervisor._node.explorer.abilities()
    return Keeper(card_paths(rig.settings.run_dir, gpu(0)), supervisor._node, record)


def wanted_after(rig):
    """Start a successor: nothing is unknown to it, and one daemon runs for a card it serves."""
    with rig.supervisor() as one:
        one.info()  # nothing is tried out any more
        eventually_sync(lambda: settled(one), "all cards run or are stopped")
        states = one.cards()
        pids = [state.pid for state in states]
        assert sorted(rig.daemons()) == sorted(pids)
        folders = {state.pipe_directory.parent.name for state in states}
        files = {f"{name}.json" for name in folders}
        assert set(rig.traces()) == folders | files
        claims = {name: one.namespaces(name) for name in (gpu(0),)}
        for state in states:
            one.stop(state.spec.gpu)
        assert rig.processes() == []
        assert rig.traces() == []
    return states, claims[gpu(0)]


def settled(supervisor):
    records = [lane.keeper.record for lane in tuple(supervisor._lanes.values())]
    stopping = any(record is not None and record.stopping for record in records)
    return not stopping and all(state.running for state in supervisor.cards())


def run_to_cut(rig, before, call, at):
    """Whether the cut came; the keeper has done ``before`` without one."""
    keeper = bare(rig)
    for step in before:
        step(keeper)
    with cutting(at, raise_cut), contextlib.suppress(Cut):
        call(keeper)
        return False
    return True


@pytest.mark.parametrize(
    ("before", "call", "served"),
    [((), ensure, {0, 1}), ((ensure,), stop, {0, 1}), ((ensure,), died, {1})],
)
def test_an_exception_at_any_edge_leaves_nothing_unknown(short_root, before, call, served):
    for at in range(1, MOST_EDGES):
        rig = quick_rig(short_root / str(at))
        try:
            cut = run_to_cut(rig, before, call, at)
            states, _ = wanted_after(rig)
            assert len(states) in served, f"edge {at}"
        finally:
            rig.end()
        if not cut:
            break
    assert 5 < at < MOST_EDGES - 1
    assert len(states) == (0 if call is stop else 1)


@pytest.mark.parametrize(("call", "left"), [(add, 1), (delete, 0)])
def test_namespaces_are_what_was_written_whatever_was_cut(short_root, call, left):
    with_protocol_3 = lambda keeper: keeper.ensure(spec(protocol=3), time.monotonic())  # noqa: E731
    before = (with_protocol_3,) if call is add else (with_protocol_3, add)
    for at in range(1, MOST_EDGES):
        rig = Rig(short_root / str(at), "615")
        try:
            cut = run_to_cut(rig, before, call, at)
            _, claims = wanted_after(rig)
            assert claims in ((), (CLAIM,))
        finally:
            rig.end()
        if not cut:
            break
    assert len(claims) == left
    assert at > 5


def killed_at(rig, at, *calls):
    """A supervisor process that is killed at its ``at``-th edge, if it comes so far."""
    words = rig.command()
    words[1:2] = ["tests.mps.cuts", str(at)]
    with rig.popen(words) as process:
        eventually_sync(
            lambda: rig.settings.socket_path.exists() or process.poll() is not None, "it listens"
        )
        for call in calls:
            with contextlib.suppress(MpsError):
                call(rig.client)
        survived = process.poll() is None
        process.kill()
    return not survived


def test_a_killed_process_leaves_nothing_unknown_either(short_root):
    edges = shuffled(5).sample(range(15, 60), 8)
    cut = 0
    for at in edges:
        rig = quick_rig(short_root / str(at))
        try:
            cut += killed_at(rig, at, *CALLS)
            rig.settings.socket_path.unlink(missing_ok=True)
            wanted_after(rig)
        finally:
            rig.end()
    assert cut > 2


def test_a_cut_during_recovery_is_recovered_from(rig):
    with rig.supervisor() as one:
        pid = one.ensure(spec()).pid
        one.ensure(spec(1))
    for at in range(1, 30, 3):
        killed_at(rig, at)
        rig.settings.socket_path.unlink(missing_ok=True)
    with rig.supervisor() as one:
        assert [state.running for state in one.cards()] == [True, True]
        assert pid in [state.pid for state in one.cards()]
        assert sorted(rig.daemons()) == sorted(state.pid for state in one.cards())


def test_daemons_survive_their_supervisor(rig):
    with rig.process() as first:
        before = rig.client.ensure(spec())
        first.kill()
        first.wait()
        assert ask_alive(before.pid)
    with rig.process():
        (after,) = rig.client.cards()
        assert after == before
        assert after.failure is None
        assert ask(rig, 0, "get_default_active_thread_percentage") == ["25.0"]
    with rig.process() as third:
        third.terminate()
        assert third.wait() == 0
    assert ask_alive(before.pid)


def ask_alive(pid):
    return proc.start_of(pid) is not None


def test_a_daemon_that_died_while_nobody_looked_comes_back(rig):
    with rig.supervisor() as one:
        before = one.ensure(spec())
    os.kill(before.pid, 9)
    os.waitpid(before.pid, 0)
    with rig.supervisor() as one:
        eventually_sync(lambda: one.cards()[0].running)
        (after,) = one.cards()
        assert after.restarts == 1
        assert after.failure == f"control daemon {before.pid} ended unseen"
        eventually_sync(lambda: one.cards()[0].failure is None)


def test_another_process_with_the_pid_of_a_daemon_is_not_taken_for_it(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
        keeper = next(iter(one._lanes.values())).keeper
        record = keeper.record
    os.kill(state.pid, 9)
    os.waitpid(state.pid, 0)
    ours = proc.Process(os.getpid(), record.daemon.start)  # the pid lives, the process is another
    with rig.supervisor() as one:
        pass
    one._node.store.put(keeper._paths.id, replace(record, daemon=ours))
    rig.end()
    with rig.supervisor() as one:
        eventually_sync(lambda: one.cards()[0].running)
        assert one.cards()[0].pid != os.getpid()
        one.stop(gpu(0))
    assert proc.start_of(os.getpid()) is not None


def test_a_lost_state_file_is_made_again_from_the_daemon(rig):
    with rig.supervisor() as one:
        before = one.ensure(spec())
    for path in rig.settings.state_dir.glob("*.json"):
        path.write_text("nonsense")
    with rig.supervisor() as one:
        (after,) = one.cards()
        assert after == before
        assert [path.name for path in (rig.settings.state_dir / "quarantine").iterdir()]


def test_a_lost_state_file_takes_no_namespace_along(rig3):
    with rig3.supervisor() as one:
        one.ensure(spec(protocol=3))
        one.ensure_namespace(gpu(0), CLAIM)
        one.ensure_namespace(gpu(0), Namespace("free_0", None, None))
    for path in rig3.settings.state_dir.glob("*.json"):
        path.unlink()
    for _ in range(2):
        with rig3.supervisor() as one:
            assert one.namespaces(gpu(0)) == (CLAIM, Namespace("free_0", None, None))


def test_folders_without_a_daemon_are_removed(rig):
    folder = rig.settings.run_dir / "00000000-11111111"
    (folder / "pipe").mkdir(parents=True)
    (rig.settings.run_dir / "somebody-elses").mkdir()
    with rig.supervisor():
        assert rig.traces() == ["somebody-elses"]


def test_a_second_daemon_of_a_card_is_ended(rig):
    with rig.supervisor() as one:
        state = one.ensure(spec())
        daemon = next(iter(one._lanes.values())).keeper._daemon
    other = daemon.paths.pipe
    other.rename(other.with_name("away"))
    other.mkdir()
    second = daemon.start((), spec())
    assert len(rig.daemons()) == 2
    with rig.supervisor() as one:
        assert one.cards()[0].pid == state.pid
        eventually_sync(lambda: rig.daemons() == [state.pid])
    assert not second.alive


def test_a_card_that_was_being_stopped_is_stopped(rig, monkeypatch):
    with rig.supervisor() as one:
        one.ensure(spec())
        monkeypatch.setattr("mps.layout.remove_folders", broken)
        with pytest.raises(MpsRefusedError, match="cannot be stopped: /x: Permission denied"):
            one.stop(gpu(0))
        assert "cannot be stopped" in one.cards()[0].failure
    with rig.supervisor() as one:
        eventually_sync(lambda: "cannot be stopped" in (one.cards()[0].failure or ""))
        monkeypatch.undo()
        eventually_sync(lambda: one.cards() == (), "it is tried again")
    assert rig.traces() == []


def broken(_paths):
    raise PermissionError(13, "Permission denied", "/x")


def test_after_a_reboot_daemons_are_started_again(rig, monkeypatch):
    with rig.supervisor() as one:
        before = one.ensure(spec())
    rig.end()
    monkeypatch.setattr("mps.proc.boot_id", lambda: "another")
    with rig.supervisor() as one:
        eventually_sync(lambda: one.cards()[0].running)
        (after,) = one.cards()
        assert (after.restarts, after.failure) == (0, None)
        assert after.pid != before.pid


@pytest.mark.parametrize("seed", range(4))
def test_random_sequences_end_with_what_was_asked(rig3, seed):
    random = shuffled(seed)
    wanted: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(rig3.supervisor())
        for _ in range(14):
            n = random.randrange(3)
            match random.choice(("ensure", "ensure", "stop", "kill", "restart")):
                case "ensure":
                    protocol = wanted.setdefault(n, random.choice((2, 3)))
                    assert one.ensure(spec(n, protocol=protocol)).running
                case "stop":
                    one.stop(gpu(n))
                    wanted.pop(n, None)
                case "kill":
                    for pid in rig3.daemons()[:1]:
                        os.kill(pid, random.choice((9, 15)))
                case _:
                    stack.close()
                    one = stack.enter_context(rig3.supervisor())
        served = {spec(n, protocol=protocol) for n, protocol in wanted.items()}
        eventually_sync(lambda: all(state.running for state in one.cards()))
        assert {state.spec for state in one.cards()} == served
        eventually_sync(lambda: len(rig3.daemons()) == len(served))
