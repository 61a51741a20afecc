"""What an administrator sets for the supervisor, as one value."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN_DIR = Path("/run/aliquot-mps")
STATE_DIR = Path("/var/lib/aliquot-mps")
PROGRAM = Path("/usr/bin/nvidia-cuda-mps-control")
CGROUP = "aliquot-mps"

_LEAST_S, _MOST_S = 0.1, 86_400.0
_LONGEST_QUIT_S = 10  # below what the driver waits for an answer


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

    def mistakes(self) -> Iterator[str]:
        """What is wrong with these values, each with its option of ``aliquot mps serve``.

        Folders have to be absolute: daemons, containers and the node plugin are told of what lies
        in them, and none of these has this process's working directory.
        """
        for option, path in self._paths():
            if path is not None and not path.is_absolute():
                yield f"{option}: got {str(path)!r}, want an absolute path"
        for option, seconds in self._seconds():
            if not _LEAST_S <= seconds <= _MOST_S:  # nan is in no range
                yield f"{option}: got {seconds:g}, want {_LEAST_S:g} to {_MOST_S:g} seconds"
        if not 0 <= self.quit_timeout_s <= _LONGEST_QUIT_S:
            want = f"0 to {_LONGEST_QUIT_S} seconds"
            yield f"--quit-timeout: got {self.quit_timeout_s}, want {want}"

    def _paths(self) -> Iterator[tuple[str, Path | None]]:
        yield "--socket", self.socket
        yield "--run-dir", self.run_dir
        yield "--state-dir", self.state_dir
        yield "--control-program", self.program
        yield "--driver-root", self.driver_root
        yield "--cgroup-root", self.cgroup_root

    def _seconds(self) -> Iterator[tuple[str, float]]:
        yield "--start-timeout", self.start_timeout_s
        yield "--probe-interval", self.probe_interval_s
        yield "--probe-timeout", self.probe_timeout_s
        yield "--settle", self.settle_s
