"""A program of the cluster as a value: start, stop, kill, restart, and its log."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.errors import ProcessError, WaitTimeoutError
from e2e.cluster.netns import NetNamespace
from e2e.cluster.polling import poll


def tail(path: Path, lines: int = 40) -> str:
    """The last lines of a log, "" if there is none. Reads at most 256 KiB."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 256 * 1024))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def inside_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without proxies: no proxy reaches into the namespace."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return {**kept, **(extra or {})}


def always_ready() -> bool:
    """For programs that need no waiting."""
    return True


@dataclass
class ManagedProcess:
    """One program in the cluster's network namespace.

    ``ready`` tells whether the running program serves; ``start`` waits for it, at most
    ``ready_timeout_s`` seconds. The log is appended to over restarts.
    """

    name: str
    argv: Sequence[str]
    netns: NetNamespace
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] = always_ready
    ready_timeout_s: float = 60.0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    @property
    def running(self) -> bool:
        """Whether the program runs now; reaps it if it has ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id. Raises ProcessError if it does not run."""
        if self._process is None or not self.running:
            raise ProcessError(f"{self.name} does not run; its log ends:\n{self.tail()}")
        return self._process.pid

    def tail(self, lines: int = 40) -> str:
        """The last lines of its log."""
        return tail(self.log, lines)

    def launch(self) -> None:
        """Start the program without waiting for it. Already running is fine."""
        if self.running:
            return
        with self.log.open("ab") as log:
            log.write(f"--- start {' '.join(self.argv)}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self.netns.argv(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=inside_environment(self.environment),
                start_new_session=True,  # the terminal's Ctrl-C is for the tests
            )

    def wait_ready(self) -> None:
        """Wait until it serves. Raises ProcessError, with its log's end, if it ends or is late."""
        try:
            poll(self._ready_or_dead, "readiness", self.ready_timeout_s)
        except WaitTimeoutError as error:
            text = f"{self.name} not ready after {self.ready_timeout_s:g} s; its log ends"
            raise ProcessError(f"{text}:\n{self.tail()}") from error

    def _ready_or_dead(self) -> bool:
        return self.pid > 0 and self.ready()

    def start(self) -> None:
        """Start and wait until it serves."""
        self.launch()
        self.wait_ready()

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, and SIGKILL after ``grace_s`` seconds. Not running is fine."""
        self._signal(signal.SIGTERM)
        try:
            self._reap(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash. Not running is fine."""
        self._signal(signal.SIGKILL)
        self._reap(None)

    def restart(self) -> None:
        """Stop, start, and wait until it serves again."""
        self.stop()
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def _reap(self, timeout_s: float | None) -> None:
        if self._process is not None:
            self._process.wait(timeout_s)
