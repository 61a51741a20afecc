"""Open files, connections and memory of a process, once a second.

Connections to the API server are counted apart: how many stay open depends on the last burst.
"""

import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.errors import ProcessError
from e2e.cluster.processes import ManagedProcess

_RSS = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)
_INODE = 9  # column of /proc/net/tcp (proc_pid_net(5))
_EVERY_S = 1.0
_WARM_UP = 20  # samples of a life until all is imported and connected
_LEAST = 12  # samples after that which say anything about growth


@dataclass(frozen=True, slots=True)
class Sample:
    files: int  # without TCP connections
    connections: int
    rss_mib: float


def sample(pid: int) -> Sample | None:
    """None where the process has just ended."""
    try:
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        tcp = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        match = _RSS.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    sockets = {f"socket:[{line.split()[_INODE]}]" for line in tcp}
    connections = sum(link in sockets for link in links)
    if match is None:
        return None
    return Sample(len(links) - connections, connections, int(match[1]) / 1024)


@dataclass
class Meter:
    """Samples each life of the process while entered."""

    process: ManagedProcess
    lives: dict[int, list[Sample]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Meter":
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                pid = self.process.pid
            except ProcessError:
                continue
            if found := sample(pid):
                self.lives.setdefault(pid, []).append(found)

    @property
    def warm(self) -> list[list[Sample]]:
        """The lives that lasted long enough, without their beginnings."""
        lives = [life[_WARM_UP:] for life in self.lives.values()]
        return [life for life in lives if len(life) >= _LEAST]

    def growth(self) -> Sample:
        """From the first quarter of a life to its last one, of medians: the worst of all lives.
        Of connections the most at one time."""
        grown = [_growth(life) for life in self.warm]
        return Sample(
            max((each.files for each in grown), default=0),
            max((each.connections for life in self.lives.values() for each in life), default=0),
            max((each.rss_mib for each in grown), default=0.0),
        )


def _growth(life: list[Sample]) -> Sample:
    part = len(life) // 4
    early, late = life[:part], life[-part:]
    files = _median([one.files for one in late]) - _median([one.files for one in early])
    rss = _median([one.rss_mib for one in late]) - _median([one.rss_mib for one in early])
    return Sample(round(files), 0, round(rss, 1))


def _median(values: list[int] | list[float]) -> float:
    return sorted(values)[len(values) // 2]
