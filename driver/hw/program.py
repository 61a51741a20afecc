"""Programs of the driver root, run with a deadline."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from driver.errors import HardwareError


@dataclass(frozen=True, slots=True)
class Printed:
    """What a program that ended left. ``status`` as Popen has it: negative for a signal."""

    status: int
    output: str
    complaint: str  # its standard error

    @property
    def last_words(self) -> str:
        """The last line that says why, wherever it was printed."""
        return _last(self.complaint) or _last(self.output) or "no message"


def run_program(
    arguments: Sequence[str | Path], timeout_s: float, env: Mapping[str, str] | None = None
) -> Printed:
    """Run a program to its end, without input; ``env`` None: this process's own.

    Raises HardwareError where it cannot be run or does not end within ``timeout_s``; then it and
    its children are killed. A bad exit status is the caller's to judge.
    """
    call = " ".join(map(str, arguments))
    try:
        process = subprocess.Popen(  # noqa: S603 - a path of the node's own configuration
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=None if env is None else dict(env),
            start_new_session=True,  # so that its children end with it
        )
    except OSError as error:
        raise HardwareError(call, f"cannot be run: {error.strerror}") from error
    with process:
        try:
            output, complaint = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise HardwareError(call, f"did not end within {timeout_s:g} s; killed") from error
    return Printed(process.returncode, output, complaint)


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()
