"""Two front ends at once: the daemon serves one of them, the other gets no answer."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from mps import frontend
from mps.frontend import ControlError, FrontEnd, Program
from mps.limits import Defaults
from mps.testing.real import UnavailableError, real_program
from tests.mps.rig import Rig, gpu, spec

COLLIDED = "echo Cannot send command to MPS control daemon process >&2; exit 1"


def program(folder: Path, *lines: str) -> FrontEnd:
    """A control program that does one of ``lines`` (shell) a call, the last one for ever."""
    file = folder / "control"
    cases = "\n".join(f"{n}) {line};;" for n, line in enumerate(lines[:-1], 1))
    file.write_text(
        f"#!/bin/sh\nn=$(wc -l < {folder}/calls)\necho >> {folder}/calls\n"
        f"case $((n + 1)) in\n{cases}\n*) {lines[-1]};;\nesac\n"
    )
    file.chmod(0o755)
    (folder / "calls").touch()
    return FrontEnd(Program(file), folder, folder, 10.0)


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def test_what_was_not_answered_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(frontend, "_PAUSE_S", 0.0)
    front = program(tmp_path, "true", COLLIDED, "exit 1", "echo 100.0")
    assert front.ask("get_default_active_thread_percentage") == ["100.0"]
    assert calls(tmp_path) == 4


@pytest.mark.parametrize(
    ("line", "said", "count"),
    [
        ("true", "nothing was answered", 8),
        (COLLIDED, "Cannot send command", 8),
        ("echo no daemon >&2; exit 1", "no daemon", 1),
    ],
)
def test_it_is_not_asked_for_ever(tmp_path, monkeypatch, line, said, count):
    monkeypatch.setattr(frontend, "_PAUSE_S", 0.0)
    front = program(tmp_path, line)
    with pytest.raises(ControlError, match=said):
        front.ask("get_default_active_thread_percentage")
    assert calls(tmp_path) == count


@contextmanager
def asking_all_the_time(file: Path, pipe: Path) -> Iterator[None]:
    """What a container can do, in a loop of its own."""
    loop = "while :; do echo get_server_list | $0 > /dev/null 2>&1; done"
    own = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    with subprocess.Popen(["/bin/sh", "-c", loop, str(file)], env=own) as one:
        try:
            yield
        finally:
            one.kill()


@pytest.mark.parametrize("version", ["535", "555"])
def test_a_container_that_asks_all_the_time_is_no_failure(short_root, version):
    try:
        rig = Rig(short_root, program=real_program(version))
    except UnavailableError as error:
        pytest.skip(str(error))
    with rig.process():
        try:
            state = rig.client.ensure(spec())
            front = FrontEnd(Program(rig.program), state.pipe_directory, short_root, 5.0)
            with asking_all_the_time(rig.program, state.pipe_directory):
                with ThreadPoolExecutor(1) as pool:  # beside the supervisor's own probes
                    looks = [pool.submit(Defaults(front, spec()).wrong) for _ in range(10)]
                assert [look.result() for look in looks] == [None] * 10
                assert rig.client.ensure(spec()).failure is None
            rig.client.stop(gpu(0))
        finally:
            rig.end()
