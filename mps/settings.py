"""What an administrator sets for the supervisor, as one value."""

from dataclasses import dataclass
from pathlib import Path

RUN_DIR = Path("/run/aliquot-mps")
STATE_DIR = Path("/var/lib/aliquot-mps")
PROGRAM = Path("/usr/bin/nvidia-cuda-mps-control")
CGROUP = "aliquot-mps"


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults are those of ``aliquot mps serve``."""

    socket: Path | None = None  # None: supervisor.sock in the run directory
    run_dir: Path = RUN_DIR  # on a volatile file system, short: pipe directories end at 87 bytes
    state_dir: Path = STATE_DIR  # outlives a reboot
    program: Path = PROGRAM
    driver_root: Path = Path("/")  # daemons run with this as their root, as in a driver container
    cgroup_root: Path | None = Path("/sys/fs/cgroup")  # None: daemons stay in our own group
    private_shm: bool = True  # a /dev/shm for each card, apart from the host's
    start_timeout_s: float = 15.0  # a daemon that does not answer by then is ended
    probe_interval_s: float = 10.0  # each probe costs 500 bytes of control.log
    probe_timeout_s: float = 5.0
    settle_s: float = 5.0  # a failure stays visible for so long after the daemon is back
    quit_timeout_s: int = 5  # clients that still run get so long at a stop

    @property
    def socket_path(self) -> Path:
        return self.socket or self.run_dir / "supervisor.sock"
