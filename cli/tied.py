"""Runs a module as ``python -m`` does, and ends with the process that started this one.

``python -m cli.tied SOCKET MODULE ARGUMENT…``. Standard input is a pipe whose other end the parent
holds and writes nothing to: it ends with the parent, whatever ended that, and no pid of another
process has to be believed. ``SOCKET`` is that of the MPS supervisor which MODULE is, else ``-``:
control daemons outlive their supervisor, so they are stopped first.
"""

import contextlib
import fcntl
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from mps.client import MpsClient
from mps.protocol import MpsError

NONE = "-"
STOP_S = 10.0  # a process that SIGTERM does not end is killed after that


def main() -> None:
    """Returns when the module does."""
    supervisor, module, *arguments = sys.argv[1:]
    threading.Thread(
        target=_end_with_parent, args=(_take_pipe(), supervisor), name="parent", daemon=True
    ).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _take_pipe() -> int:
    """Standard input under another number: what the module starts finds nothing to read."""
    pipe = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return pipe


def _end_with_parent(pipe: int, supervisor: str) -> None:
    while os.read(pipe, 1):
        pass
    if supervisor != NONE:
        stop_daemons(Path(supervisor))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_S)
    os.kill(os.getpid(), signal.SIGKILL)


def stop_daemons(socket: Path) -> None:
    """Have the supervisor end every control daemon; nothing where it does not answer."""
    client = MpsClient(socket, timeout_s=10.0)
    with contextlib.suppress(MpsError):
        for state in client.cards():
            client.stop(state.spec.gpu)


if __name__ == "__main__":
    main()
