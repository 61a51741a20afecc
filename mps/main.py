"""The supervisor as a process: signals in, exit status out."""

import gc
import logging
import signal
import threading
from types import FrameType

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
    ending = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        supervisor = Supervisor(settings)
        supervisor.open()
        server = Server(supervisor, settings.socket_path)
        server.open()
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        log.error("%s%s", error.strerror or error, where)
        return 1
    gc.freeze()  # what is imported stays
    threading.Thread(target=server.serve, name="accept", daemon=True).start()
    log.info("serving %s", settings.socket_path)
    ending.wait()
    server.close()
    supervisor.close()
    return 0
