"""The control program as a front end: one short process a call, its answer as lines.

It exits 0 on almost every error and most errors say nothing, so callers read back what they set.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launch.py")

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DROPPED = ("CUDA_", "PYTHON")  # settings of others for this process, not for daemons


_COLLIDED = "Cannot send command to MPS control daemon process"
_TRIES, _PAUSE_S = 8, 0.02  # 0.6 s in all, beside a container that asks without a break


class ControlError(Exception):
    """The control program did not do what was asked; the text is for people."""


class UnheardError(ControlError):
    """The daemon was busy with another front end, as far as the answer tells."""


@dataclass(frozen=True, slots=True)
class Program:
    """The control program, as seen from its root directory."""

    path: Path
    root: Path = Path("/")

    @property
    def file(self) -> Path:
        """Where we see it."""
        return self.root / self.path.relative_to("/")

    @property
    def missing(self) -> str | None:
        """Why it cannot be run, if so."""
        advice = "install the NVIDIA driver's MPS programs or set --control-program"
        if not self.file.is_file():
            return f"control program {self.file} is not there; {advice}"
        if not os.access(self.file, os.X_OK):
            return f"control program {self.file} is not executable; {advice}"
        return None


def environment(program: Program, pipe: Path, logs: Path) -> dict[str, str]:
    """Ours without CUDA's settings, with these directories; servers are found on PATH."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith(_DROPPED)}
    beside = program.path.parent
    path = f"{beside}:{beside.parent / 'sbin'}:{_SYSTEM_PATH}"
    pair = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    return {**kept, "PATH": path, **pair}


def launcher(plan: Mapping[str, object]) -> list[str]:
    """The command line that carries out a plan of ``mps.launch``."""
    return [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(plan)]


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Talks to the daemon of one pipe directory."""

    program: Program
    pipe: Path
    logs: Path
    timeout_s: float

    def ask(self, *commands: str) -> list[str]:
        """Protocol 2: the lines that these commands answer, one after another; at least one.

        Two front ends at once are not served: one of them gets no answer to any of its commands,
        mostly with exit status 0 (535, 550, 555). Containers have front ends too, so that is
        tried again.

        Raises:
            ControlError: no daemon, no answer in time or at all, or no program.
        """
        for number in range(1, _TRIES):
            with contextlib.suppress(UnheardError):
                if lines := self._run([], "\n".join(commands), 0.0):
                    return lines
            time.sleep(_PAUSE_S * number)
        if lines := self._run([], "\n".join(commands), 0.0):
            return lines
        raise ControlError(
            f"nothing was answered to `{'; '.join(commands)}` {_TRIES} times; does another "
            "program, perhaps in a container, talk to the daemon all the time?"
        )

    def tell(self, command: str, more_s: float = 0.0) -> None:
        """Protocol 2: a command without an answer. Raises ControlError as ``ask``."""
        self._run([], command, more_s)

    def call(self, *words: str, more_s: float = 0.0) -> list[str]:
        """Protocol 3, or an option: the lines that this command line answers.

        Raises:
            ControlError: as ``ask``.
        """
        return self._run(list(words), "", more_s)

    def _run(self, words: Sequence[str], text: str, more_s: float) -> list[str]:
        asked = " ".join(words) or text.replace("\n", "; ")
        limit_s = self.timeout_s + more_s
        try:
            done = subprocess.run(  # noqa: S603 - an administrator's path, our own words
                self._command(words),
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
                env=environment(self.program, self.pipe, self.logs),
            )
        except subprocess.TimeoutExpired as error:
            raise ControlError(f"no answer to `{asked}` within {limit_s:g} s") from error
        except OSError as error:
            why = self.program.missing or f"{self.program.file}: {error.strerror or error}"
            raise ControlError(why) from error
        if done.returncode != 0:
            said = " ".join((done.stderr + done.stdout).split())[:300]
            kind = UnheardError if said in ("", _COLLIDED) else ControlError
            raise kind(f"`{asked}` exited with {done.returncode} and said: {said or 'nothing'}")
        return done.stdout.splitlines()

    def _command(self, words: Sequence[str]) -> list[str]:
        own = [str(self.program.path), *words]
        if self.program.root == Path("/"):
            return own
        plan = {"session": False, "groups": [], "shm": None, "root": str(self.program.root)}
        return launcher({**plan, "parent": os.getpid(), "command": own})
