"""What the keepers of all cards share."""

from collections.abc import Callable
from dataclasses import dataclass

from mps.abilities import Explorer
from mps.daemon import Host
from mps.limits import sent
from mps.protocol import CardSpec
from mps.state import Store

STEADY_S = 30.0  # a daemon that lived so long starts the pauses anew


@dataclass(frozen=True, slots=True)
class Node:
    """``changed`` is called after each change of a card's state, in any thread."""

    host: Host
    store: Store
    explorer: Explorer
    boot: str
    probe_interval_s: float
    settle_s: float
    quit_timeout_s: int
    changed: Callable[[], None]


def pause_s(fails: int) -> float:
    """Before the next start, after so many in a row that did not last: 0, 0.5, 1, 2 … 60 s."""
    return 0.0 if fails == 0 else min(60.0, 0.5 * 2.0 ** min(fails - 1, 10))


def told(spec: CardSpec) -> str:
    """A spec for people."""
    memory = "no memory limit" if spec.memory_limit is None else f"{sent(spec.memory_limit)}iB"
    compute = 100 if spec.compute_percent is None else spec.compute_percent
    return f"{memory}, {compute} % and protocol {spec.protocol}"
