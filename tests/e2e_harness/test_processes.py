"""Handles of programs, and waiting; with real processes in no namespace."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from e2e.cluster import lock
from e2e.cluster.errors import ClusterInUseError, ProcessError, WaitTimeoutError
from e2e.cluster.layout import Layout
from e2e.cluster.netns import NetNamespace
from e2e.cluster.polling import poll
from e2e.cluster.processes import ManagedProcess, inside_environment


class HostNamespace(NetNamespace):
    """Runs commands where the test runs."""

    def argv(self, argv: Sequence[str]) -> list[str]:
        return list(argv)


Make = Callable[[str], ManagedProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[ManagedProcess] = []

    def maker(script: str) -> ManagedProcess:
        up = tmp_path / "up"
        process = ManagedProcess(
            "program",
            [sys.executable, "-c", f"import pathlib, signal, time\n{script}"],
            HostNamespace("host"),
            tmp_path / "program.log",
            environment={"UP": str(up)},
            ready=up.exists,
            ready_timeout_s=20,
        )
        made.append(process)
        return process

    yield maker
    for process in made:
        process.kill()


SERVE = "import os\nprint('serving', flush=True)\npathlib.Path(os.environ['UP']).touch()\n"
SLEEP = SERVE + "time.sleep(600)\n"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP


def test_start_waits_until_it_serves_and_stop_ends_it(make):
    process = make(SLEEP)

    process.start()
    pid = process.pid
    process.stop()

    assert not process.running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_restart_gives_a_new_process_and_keeps_the_log(make):
    process = make(SLEEP)
    process.start()
    before = process.pid

    process.restart()
    poll(lambda: process.tail().splitlines().count("serving") == 2, "both runs in the log")

    assert process.pid != before


def test_a_program_that_ignores_the_polite_signal_is_killed(make):
    process = make(STUBBORN)
    process.start()

    process.stop(grace_s=0.2)

    assert not process.running


def test_a_program_that_ends_early_is_an_error_with_its_last_words(make):
    process = make("print('bad flag', flush=True)\nraise SystemExit(3)\n")

    with pytest.raises(ProcessError, match=r"program does not run(.|\n)*\nbad flag"):
        process.start()


def test_a_program_that_is_late_is_an_error_with_its_last_words(make):
    process = make("print('thinking', flush=True)\ntime.sleep(600)\n")
    process.launch()
    poll(lambda: "thinking" in process.tail().splitlines(), "the program to begin")
    process.ready_timeout_s = 0.1

    with pytest.raises(ProcessError, match=r"not ready after 0\.1 s(.|\n)*\nthinking"):
        process.wait_ready()


def test_a_crash_from_outside_is_noticed(make):
    process = make(SLEEP)
    process.start()

    os.kill(process.pid, signal.SIGKILL)

    poll(lambda: not process.running, "the crash to be noticed")


def test_stopping_what_does_not_run_is_fine(make):
    process = make(SLEEP)

    process.stop()
    process.kill()

    assert not process.running


def test_proxies_of_the_host_are_not_handed_in(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "x")
    monkeypatch.setenv("KEPT", "1")

    inside = inside_environment({"MORE": "2"})

    assert not {"HTTPS_PROXY", "no_proxy"} & inside.keys()
    assert (inside["KEPT"], inside["MORE"]) == ("1", "2")


def test_a_name_is_held_by_one_and_free_again_afterwards(tmp_path):
    layout = Layout(f"t{os.getpid()}", tmp_path)

    with lock.held(layout), pytest.raises(ClusterInUseError, match="ALIQUOT_E2E_NAME"):
        lock.take(layout)

    with lock.held(layout):
        pass


def test_polling_asks_once_more_when_the_time_is_over():
    asked: list[int] = []

    with pytest.raises(WaitTimeoutError, match="waited 0 s for nothing: seen: 1"):
        poll(lambda: asked.append(1), "nothing", 0, detail=lambda: f"seen: {len(asked)}")


def test_polling_returns_what_the_probe_found():
    answers = iter([None, "", "found"])

    assert poll(lambda: next(answers), "an answer", interval_s=0) == "found"
