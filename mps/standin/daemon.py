"""The daemon of the stand-in: sockets, files, log, servers."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TextIO

from mps.standin.knobs import Knobs
from mps.standin.legacy import Backend, Legacy
from mps.standin.model import Holding
from mps.standin.named import V3

LARGEST = 1 << 18
_FILES = ("control", "control_privileged")
_PID = "nvidia-cuda-mps-control.pid"
_SLEEPER, _FAILING = "/bin/sleep", "/bin/false"


class Daemon:
    """One pipe directory. ``run`` returns the exit status after ``quit``."""

    def __init__(
        self, version: int, pipe: Path, log: TextIO, knobs: Knobs, ready: Callable[[], object]
    ) -> None:
        self._version = version
        self._pipe = pipe
        self._log_file = log
        self._knobs = knobs
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        percent = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
        self._held = Holding(version, device, os.geteuid(), percent)
        self._legacy = Legacy(self._held, Backend(self.log, self._spawn, self._end))
        self._named = V3(self._held, pipe, _folder)
        self._ready = ready
        self._quit = self._busy = False
        self._last: socket.socket | None = None  # of the one who said quit: waits for our end

    def log(self, text: str) -> None:
        """A line of control.log."""
        now = datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]  # noqa: DTZ005 - as the real one
        self._log_file.write(f"[{now} Control {os.getpid():>5}] {text}\n")
        self._log_file.flush()

    def run(self) -> int:
        """Serve until ``quit``."""
        time.sleep(self._knobs.slow_start_s)
        while self._knobs.hang == "start":
            self.log("Hanging as it was told")
            signal.pause()
        self.log(f"Starting control daemon using socket {self._pipe}/control")
        self.log(
            "To connect CUDA applications to this daemon, set env "
            f"CUDA_MPS_PIPE_DIRECTORY={self._pipe}"
        )
        if self._version >= 580:
            self.log(f"CUDA MPS Control binary version: {13000 if self._version < 615 else 13040}")
        with self._open() as listener:
            self._ready()
            while not self._quit:
                with contextlib.suppress(OSError, ValueError):
                    self._serve(listener.accept()[0])
        for pid in tuple(self._held.servers):
            self._end(pid)
        for name in ("log", _PID):
            (self._pipe / name).unlink(missing_ok=True)
        self.log("Exit with status 0")
        return 0

    def _open(self) -> socket.socket:
        made = []
        for name in _FILES:
            (self._pipe / name).unlink(missing_ok=True)
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.bind(str(self._pipe / name))
            made.append(one)
        (self._pipe / "control").chmod(0o666)
        if not (self._pipe / "log").exists():
            os.mkfifo(self._pipe / "log")
        (self._pipe / "log").chmod(0o777)
        if self._version >= 550:
            (self._pipe / _PID).write_text(str(os.getpid()))
            (self._pipe / _PID).chmod(0o666)
        made[0].listen(128)
        made[1].close()  # only the file matters
        signal.signal(signal.SIGCHLD, self._child_ended)
        return made[0]

    def _serve(self, connection: socket.socket) -> None:
        self._busy = True
        try:
            self._converse(connection)
        finally:
            self._busy = False
            if self._quit:
                self._last = connection
            else:
                connection.close()
                self._reap()

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(5.0)
        self.log("Accepting connection...")
        self.log("NEW UI")
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        _, uid, _ = struct.unpack("3i", credentials)
        asked = json.loads(connection.recv(LARGEST))
        if self._knobs.hang == "answer":
            self._sulk(connection)
            return
        lines = self._answer(asked, uid)
        connection.send(json.dumps(lines).encode())
        self.log("UI closed")

    def _sulk(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.recv(1)

    def _answer(self, asked: dict[str, list[str]], uid: int) -> list[str]:
        if asked["words"]:
            return self._answer_words(asked["words"], uid)
        return [text for line in asked["lines"] for text in self._answer_line(line, uid)]

    def _answer_words(self, words: list[str], uid: int) -> list[str]:
        self.log(f"Cmd:{' '.join(words)}")
        if words[0] in ("-q", "--quit"):
            self._quit = True
            return []
        if any(word in self._knobs.ignores for word in words):
            return []
        return self._named.run(words, uid)

    def _answer_line(self, line: str, uid: int) -> list[str]:
        self.log(f"Cmd:{line}")
        name, *words = line.split() or [""]
        if name == "quit":
            return self._take_quit(words, uid)
        if name == "standin_connect":  # pid, uid, command: what the CUDA driver of a client does
            self._legacy.connect(int(words[0]), int(words[1]), " ".join(words[2:]))
            return []
        if name in self._knobs.ignores:
            return []
        found = self._legacy.run(line, uid)
        for text in found:
            self.log(text)
        return found

    def _take_quit(self, words: list[str], uid: int) -> list[str]:
        if uid not in (0, os.geteuid()):
            return ["Not enough privilege to execute quit command"]
        timeout = words[1] if words[:1] == ["-t"] and len(words) > 1 else None
        self.log("quit command issued" + (f" with timeout of {timeout}" if timeout else ""))
        self._quit = True
        return []

    def _spawn(self, uid: int) -> int | None:
        del uid  # a server runs as its user; this one does nothing
        what = _FAILING if self._knobs.server_fails else _SLEEPER
        return os.posix_spawn(what, ["nvidia-cuda-mps-server", "infinity"], os.environ)

    def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    def _child_ended(self, _number: int, _frame: object) -> None:
        if not self._busy:
            self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._held.servers.pop(pid, None)
                code = os.waitstatus_to_exitcode(status)
                self.log(f"Server {pid} exited with status {max(code, 0)}")


def _folder(path: Path, there: bool) -> None:
    if there:
        path.mkdir(parents=True, exist_ok=True)
        (path / "control").touch()
    else:
        shutil.rmtree(path, ignore_errors=True)


def lock(pipe: Path) -> bool:
    """Whether this is the only daemon of the pipe directory."""
    file = pipe / "control_lock"
    fd = os.open(file, os.O_WRONLY | os.O_CREAT, 0o666)
    file.chmod(0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the process ends
    except BlockingIOError:
        return False
    return True


def open_log(folder: Path, foreground: bool) -> TextIO:
    """In the foreground the log is standard output."""
    if foreground:
        return sys.stdout
    return (folder / "control.log").open("a", encoding="utf-8")
