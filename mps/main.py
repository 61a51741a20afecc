"""The supervisor as a process: signals in, exit status out."""

import gc
import logging
import signal
import socket
import threading

from mps.server import Server
from mps.settings import Settings
from mps.supervisor import Supervisor

log = logging.getLogger(__name__)


def set_up_log(level: str) -> None:
    """To standard error. ``level`` is a name of logging."""
    form = "%(asctime)s %(levelname)-7s %(message)s"
    logging.basicConfig(level=level.upper(), format=form)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean stop, 1 with the reason in the log.

    The daemons go on in either case.
    """
    with _Signals(signal.SIGTERM, signal.SIGINT) as signals:
        return _serve(settings, signals)


class _Signals:
    """Waits for signals. A lock does not do: whichever thread of ours the kernel gives the signal
    to, the handler runs in the main thread, and that may sleep on (seen in one of four ends). What
    comes before the wait is not lost."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    def __enter__(self) -> "_Signals":
        signal.set_wakeup_fd(self._writer.fileno())
        for number in self._numbers:
            signal.signal(number, lambda _number, _frame: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def wait(self) -> None:
        self._reader.recv(1)


def _serve(settings: Settings, signals: _Signals) -> int:
    try:
        supervisor = Supervisor(settings)
        supervisor.open()
        server = Server(supervisor, settings.socket_path)
        try:
            server.open()
        except OSError:
            supervisor.close()  # a trial of the control program would outlive us
            raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        log.error("%s%s", error.strerror or error, where)
        return 1
    gc.freeze()  # what is imported stays
    threading.Thread(target=server.serve, name="accept", daemon=True).start()
    log.info("serving %s", settings.socket_path)
    signals.wait()
    server.close()
    supervisor.close()
    return 0
