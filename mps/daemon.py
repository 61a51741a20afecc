"""One control daemon as a process: started, found again, ended."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mps import layout, proc
from mps.cgroups import Cgroups
from mps.frontend import ControlError, FrontEnd, Program, environment, launcher
from mps.layout import CardPaths
from mps.limits import limits_environment
from mps.proc import Process
from mps.protocol import CardSpec, MpsRefusedError, as_data, spec_of

_POLL_S = 0.002
_END_S = 2.0
_TAIL_BYTES = 4096
_OWN_LINE = "aliquot: "  # of mps.launch
_IGNORED_BY_US = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, a daemon must not


@dataclass(frozen=True, slots=True)
class Host:
    """What every daemon of this node is started with."""

    program: Program
    cgroups: Cgroups
    private_shm: bool
    start_timeout_s: float
    probe_timeout_s: float


class NotReadyError(ControlError):
    """It came up and did not answer in time."""


class Daemon:
    """The control daemon of one folder."""

    def __init__(self, host: Host, paths: CardPaths) -> None:
        self.host = host
        self.paths = paths
        self.front = FrontEnd(host.program, paths.pipe, paths.logs, host.probe_timeout_s)
        self._log_from = 0

    @property
    def shm(self) -> Path | None:
        return self.paths.shm if self.host.private_shm else None

    def start(self, options: Sequence[str], spec: CardSpec | None, protocol: int = 2) -> Process:
        """Start the daemon and wait until it answers.

        Raises:
            ControlError: it did not come up; nothing of it is left.
        """
        if why := self.host.program.missing:
            raise ControlError(why)
        process = None
        try:
            layout.make_folders(self.paths)
            self._log_from = _size(self.paths.control_log)
            process = self._spawn(options, spec)
            self._await(process, protocol)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise ControlError(f"{error.strerror or error}{where}") from error
        except ControlError:
            if process is not None:
                self.end(process)
            raise
        return process

    def _spawn(self, options: Sequence[str], spec: CardSpec | None) -> Process:
        groups = self.host.cgroups.make(self.paths.group)
        plan = {
            "session": True,
            "groups": [str(file) for file in groups],
            "shm": None if self.shm is None else str(self.shm),
            "root": str(self.host.program.root),
            "parent": os.getpid(),
            "command": [str(self.host.program.path), "-f", *options],
        }
        log = str(self.paths.control_log)
        words = launcher(plan)
        pid = os.posix_spawn(
            words[0],
            words,
            {
                **environment(self.host.program, self.paths.pipe, self.paths.logs),
                **self._own(spec),
            },
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsigdef=_IGNORED_BY_US,
            setsigmask=(),
        )
        return proc.found(pid) or Process(pid, -1)

    def _own(self, spec: CardSpec | None) -> dict[str, str]:
        own = {proc.MARK: str(self.paths.folder)}
        if spec is not None:
            own["CUDA_VISIBLE_DEVICES"] = spec.gpu
            own[proc.SPEC] = json.dumps(as_data(spec))
            own |= limits_environment(spec)
        return own

    def _await(self, process: Process, protocol: int) -> None:
        end = time.monotonic() + self.host.start_timeout_s
        refused = "it did not open its socket"
        while True:
            try:
                if (self.paths.pipe / "control").exists():  # the directory was emptied before
                    self.ping(protocol)
                    return
            except ControlError as error:  # the socket is there before it is listened on
                refused = str(error)
            if not process.alive:
                raise ControlError(self._why_it_ended(process))
            if time.monotonic() > end:
                limit = f"{self.host.start_timeout_s:g}"
                raise NotReadyError(
                    f"it was ended, since it was not ready in {limit} s: {refused}"
                )
            time.sleep(_POLL_S)

    def ping(self, protocol: int) -> None:
        """Raises ControlError if the daemon does not answer."""
        if protocol == 3:
            self.front.call("server", "list", "--format=csv,noheader")
        else:
            self.front.ask("get_default_active_thread_percentage")

    def _why_it_ended(self, process: Process) -> str:
        how = how_it_ended(process.pid)
        said = self.last_words()
        return f"it {how} when it was started" + (f"; it said: {said}" if said else "")

    def last_words(self) -> str:
        """The end of what it printed since its start, without the lines of its log."""
        try:
            data = self.paths.control_log.read_bytes()[self._log_from :][-_TAIL_BYTES:]
        except OSError:
            return ""
        lines = data.decode(errors="replace").splitlines()
        said = [line.removeprefix(_OWN_LINE) for line in lines if line and not _logged(line)]
        return " ".join(" ".join(said[-3:]).split())[:300]

    def candidates(self) -> tuple[Process, ...]:
        """All processes that were started for this folder, servers too."""
        pids = self.host.cgroups.pids(self.paths.group) if self._grouped else proc.every_pid()
        ours = (pid for pid in pids if proc.is_ours(pid, self.paths.folder))
        return tuple(process for pid in ours if (process := proc.found(pid)) is not None)

    @property
    def _grouped(self) -> bool:
        """Within groups of our own nobody else's process can pose as a daemon."""
        return self.host.cgroups.used

    def daemons(self) -> tuple[Process, ...]:
        """The control daemons among the candidates."""
        return tuple(one for one in self.candidates() if proc.is_daemon(one.pid))

    def rest(self, daemon: Process | None) -> tuple[Process, ...]:
        """The candidates without the daemon: servers, launchers, surplus daemons."""
        return tuple(one for one in self.candidates() if one != daemon)

    def quit(self, process: Process, stop: Callable[[], object], wait_s: float) -> None:
        """Let ``stop`` ask the daemon to quit, then end it and all that is left of it."""
        with contextlib.suppress(ControlError):
            stop()
            process.wait(wait_s)
        self.end(process)

    def end(self, process: Process | None) -> None:
        """No process of this folder is left. Raises ControlError if one does not go."""
        for one in (*(() if process is None else (process,)), *self.rest(process)):
            gone = one.end(_END_S)
            how_it_ended(one.pid)
            if not gone:
                raise ControlError(f"process {one.pid} does not end, not even by SIGKILL")


def spec_from(process: Process) -> CardSpec | None:
    """The spec that a daemon was started with, out of its environment."""
    try:
        return spec_of(json.loads(proc.environment(process.pid)[proc.SPEC]))
    except (KeyError, ValueError, TypeError, MpsRefusedError):
        return None


def how_it_ended(pid: int) -> str:
    """Reap a child that ended; "ended" is all that is known of a process that is none."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return "ended"
    if found == 0:
        return "ended"
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with status {os.WEXITSTATUS(status)}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _logged(line: str) -> bool:
    return line.startswith("[") and " Control " in line[:60]
