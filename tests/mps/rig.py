"""Real supervisors on folders of their own, and everything that they started ended afterwards."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mps import proc
from mps.client import MpsClient
from mps.layout import PROBE
from mps.protocol import MIB, CardSpec, MpsUnreachableError
from mps.settings import Settings
from mps.standin.install import install, set_knobs
from mps.supervisor import Supervisor
from mps.testing.real import UnavailableError, real_program
from tests.polling import eventually_sync

ROOT = Path(__file__).parents[2]
QUICK: dict[str, Any] = {
    "start_timeout_s": 10.0,
    "probe_interval_s": 0.2,
    "probe_timeout_s": 5.0,
    "settle_s": 0.3,
    "quit_timeout_s": 1,
}


def gpu(n: int) -> str:
    """The UUID of a card; never one of another test run on this machine."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{os.getpid()}.{n}')}"


def spec(n: int = 0, memory: int | None = 14336, percent: int | None = 25, protocol: int = 2):
    """``memory`` in MiB."""
    return CardSpec(gpu(n), None if memory is None else memory * MIB, percent, protocol)


class Rig:
    """Folders, a control program, and the supervisors that ran on them."""

    def __init__(self, root: Path, version: str = "580", program: Path | None = None) -> None:
        self.root = root
        self.program = program or install(root / "bin", version)
        self.settings = Settings(
            run_dir=root / "run",
            state_dir=root / "state",
            program=self.program,
            cgroup_root=None,
            private_shm=False,
            **QUICK,
        )
        self.client = MpsClient(self.settings.socket_path, timeout_s=30.0)

    def change(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)

    def knobs(self, **knobs: object) -> None:
        set_knobs(self.program, **knobs)

    @contextmanager
    def supervisor(self) -> Iterator[Supervisor]:
        """In this process."""
        one = Supervisor(self.settings)
        one.open()
        try:
            yield one
        finally:
            one.close()

    def command(self) -> list[str]:
        own = self.settings
        options = {
            "--run-dir": own.run_dir,
            "--state-dir": own.state_dir,
            "--control-program": own.program,
            "--cgroup-root": own.cgroup_root or "none",
            "--start-timeout": own.start_timeout_s,
            "--probe-interval": own.probe_interval_s,
            "--probe-timeout": own.probe_timeout_s,
            "--settle": own.settle_s,
            "--quit-timeout": own.quit_timeout_s,
        }
        words = [str(word) for pair in options.items() for word in pair]
        return ["-m", "mps", *words, *([] if own.private_shm else ["--host-shm"])]

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        """As a process; it is killed at the end unless it has ended."""
        with self.popen(self.command()) as one:
            try:
                self.await_socket(one)
                yield one
            finally:
                one.kill()

    def popen(self, words: list[str], **environment: str) -> subprocess.Popen[bytes]:
        with (self.root / "supervisor.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stderr=log,
            )

    def await_socket(self, process: subprocess.Popen[bytes]) -> None:
        def answers() -> bool:
            assert process.poll() is None, (self.root / "supervisor.log").read_text()
            with contextlib.suppress(MpsUnreachableError):
                self.client.cards()
                return True
            return False

        eventually_sync(answers, "the supervisor answers")

    def processes(self) -> list[int]:
        """Everything that was started for a card here: daemons, servers, launchers."""
        return [pid for pid, folder in self._marked().items() if folder.name != PROBE]

    def _marked(self) -> dict[int, Path]:
        live = (pid for pid in proc.every_pid() if proc.start_of(pid) is not None)
        marks = {pid: Path(proc.environment(pid).get(proc.MARK, "")) for pid in live}
        return {pid: mark for pid, mark in marks.items() if mark.parent == self.settings.run_dir}

    def daemons(self) -> list[int]:
        return [pid for pid in self.processes() if proc.is_daemon(pid)]

    def traces(self) -> list[str]:
        """What is left of cards: folders and state files."""
        own = self.settings
        found = [*own.run_dir.iterdir(), *own.state_dir.iterdir()]
        others = ("supervisor.", PROBE)
        return sorted(p.name for p in found if not p.name.startswith(others))

    def end(self) -> None:
        for pid in self._marked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def quick_rig(root: Path) -> Rig:
    """On the real control program where it can be had: it starts in 10 ms, the stand-in in 60."""
    root.mkdir()
    try:
        return Rig(root, program=real_program("550"))
    except UnavailableError:
        return Rig(root, "550")


def ask(rig: Rig, n: int, *lines: str) -> list[str]:
    """What the card's control daemon answers to a front end of ours."""
    state = next(one for one in rig.client.cards() if one.spec.gpu == gpu(n))
    done = subprocess.run(
        [str(rig.program)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(state.pipe_directory)},
    )
    return done.stdout.splitlines()


def shuffled(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311
