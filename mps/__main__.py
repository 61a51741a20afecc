"""``python -m mps``: the supervisor without the command line tool, for the least memory."""

import argparse
import sys
from pathlib import Path

from mps.main import run, set_up_log
from mps.settings import Settings


def _cgroup_root(text: str) -> Path | None:
    return None if text == "none" else Path(text)


def main() -> int:
    """See ``aliquot mps serve --help``."""
    own = Settings()
    parser = argparse.ArgumentParser(prog="python -m mps", description=__doc__)
    parser.add_argument(
        "--socket", type=Path, help="Default: supervisor.sock in the run directory"
    )
    parser.add_argument("--run-dir", type=Path, default=own.run_dir)
    parser.add_argument("--state-dir", type=Path, default=own.state_dir)
    parser.add_argument("--control-program", dest="program", type=Path, default=own.program)
    parser.add_argument("--driver-root", type=Path, default=own.driver_root)
    parser.add_argument("--cgroup-root", type=_cgroup_root, default=own.cgroup_root)
    parser.add_argument(
        "--host-shm", dest="private_shm", action="store_false", help="Use /dev/shm for all cards"
    )
    for name in ("start-timeout", "probe-interval", "probe-timeout", "settle"):
        field = name.replace("-", "_") + "_s"
        parser.add_argument(f"--{name}", dest=field, type=float, default=getattr(own, field))
    parser.add_argument("--quit-timeout", dest="quit_timeout_s", type=int, default=5)
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    given = vars(parser.parse_args())
    log_level = given.pop("log_level")
    settings = Settings(**given)
    if mistakes := [*settings.mistakes()]:
        parser.error("; ".join(mistakes))
    set_up_log(log_level)
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
