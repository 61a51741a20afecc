"""What processes use of a card: facts, no judgement."""

from dataclasses import dataclass

from driver.model.units import Bytes


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process with a compute context on a card."""

    pid: int  # as this process sees pids
    memory: Bytes | None  # None: the kernel does not tell
    compute_percent: int | None  # of the card's multiprocessors; None: the card does not tell
    mps_client: bool = False
    pod: str | None = None  # UID of the pod whose cgroup it is in; None: in none, or it is gone
    name: str = ""  # of its program; empty: it is gone
