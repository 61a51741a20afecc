"""The command line of the stand-in."""

import contextlib
import json
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

from mps.standin import daemon, knobs
from mps.standin.install import VERSIONS
from mps.standin.knobs import Knobs

LONGEST_PIPE = 87
_HELP = (
    "CUDA MPS Control for Linux/Unix.\n"
    "Copyright (C) 2003 - 2024 NVIDIA Corporation.\n"
    "\n"
    "  This program allows multiple CUDA processes to share a single GPU context. For information "
    "on how to use the CUDA MPS, see the nvidia-cuda-mps-control manual page.\n"
    "\n"
)
_COPYRIGHT = {"535": "2023", "550": "2023"}
_MODULES = ("server", "namespace", "client", "device", "feature")


def main(version: str) -> int:
    """Returns the exit status."""
    words = sys.argv[1:]
    tuned = knobs.read(Path(sys.argv[0]))
    if words in (["-h"], ["--help"]):
        sys.stdout.write(_help(version))
        return 0
    if words in (["-v"], ["--version"]) and int(version) >= 580:
        sys.stdout.write(f"{VERSIONS[version]}\n")
        return 0
    mode = words[0] if words[:1] in (["-d"], ["-f"]) else None
    options = words[1:] if mode else []
    if mode is not None and not _known(options, int(version)):
        mode, words = None, words if int(version) >= 555 else []
    elif mode is None and int(version) < 555:
        words = []  # whatever it is, it is a front end
    if mode is None:
        return _front(words, version, tuned)
    if options[:1] != ["-p"] and options and os.geteuid() != 0:
        sys.stdout.write(f"Only root user may enable {options[0]}!\n")
        return 1
    return _daemon(mode == "-f", int(version), tuned)


def _help(version: str) -> str:
    return _HELP.replace("2024", _COPYRIGHT.get(version, "2024"))


def _known(options: list[str], version: int) -> bool:
    allowed: list[list[str]] = [[]]
    if version >= 555:
        allowed.append(["-multiuser-server"])
    if version >= 580:
        allowed.append(["-M"])
    if version >= 615:
        allowed += [["-p", "3"], ["-p", "3", "-m"]]
    return options in allowed


def _daemon(foreground: bool, version: int, tuned: Knobs) -> int:
    if tuned.exits is not None:
        return tuned.exits
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108
    logs = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))
    if len(os.fsencode(pipe)) > LONGEST_PIPE:
        return 1
    warning = ""
    if not _made(logs, 0o700):
        warning = f"Warning: Failed writing log files to directory [{logs}]."
        warning += " No logs will be available.\n"
    sys.stdout.write(warning)
    if not _made(pipe, 0o777):
        sys.stdout.write(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe}\n{warning}")
        return 1
    if not daemon.lock(pipe):
        sys.stdout.write("An instance of this daemon is already running\n")
        return 1
    tell = None if foreground else _detach()
    if tell is not None and tell < 0:
        return 0
    with daemon.open_log(logs, foreground) as log:
        return daemon.Daemon(version, pipe, log, tuned, partial(_tell, tell)).run()


def _tell(listening: int | None) -> None:
    if listening is not None:
        os.close(listening)


def _made(folder: Path, mode: int) -> bool:
    with contextlib.suppress(OSError):
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(mode)
        return True
    return False


def _detach() -> int:
    """In the daemon what to close once it listens; below 0 in the process that was started."""
    ready, tell = os.pipe()
    if os.fork() > 0:
        os.close(tell)
        os.read(ready, 1)
        return -1
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(ready)
    return tell


def _front(words: list[str], version: str, tuned: Knobs) -> int:
    while tuned.hang == "front":
        signal.pause()
    if words and not (int(version) >= 615 and _is_v3(words)):
        sys.stdout.write(_help(version))
        return 1
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(f"{pipe}/control")
        except OSError:
            sys.stderr.write("Cannot find MPS control daemon process\n")
            return 1
        lines = [] if words else sys.stdin.read().splitlines()
        connection.send(json.dumps({"words": words, "lines": lines}).encode())
        answer = connection.recv(daemon.LARGEST)
        if any(line.split()[:1] == ["quit"] for line in lines) or words[:1] == ["-q"]:
            connection.recv(1)  # until the daemon has gone
    for line in json.loads(answer or b"[]"):
        sys.stdout.write(f"{line}\n")
    return 0


def _is_v3(words: list[str]) -> bool:
    return words[0] in (*_MODULES, "-q", "--quit")
