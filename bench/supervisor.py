"""The MPS supervisor: how soon a card is served, what it weighs, what a restart costs.

With the real control program, which runs without a GPU; all in folders and cgroups of its own.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.node import memory
from bench.stats import summary, table
from e2e.cluster.polling import poll
from mps.client import MpsClient
from mps.protocol import MIB, CardSpec, MpsUnreachableError
from mps.testing.real import real_program

COLD_MS, WARM_MS, RESIDENT_MIB = 300.0, 5.0, 30.0
_CARDS, _ROUNDS, _WARM = 10, 10, 500
_VERSION = "555"  # has -multiuser-server


def measure() -> dict[str, Any]:
    """Prints a table; returns every value: milliseconds, MiB."""
    with tempfile.TemporaryDirectory(prefix="aqm-") as name:
        folder = Path(name)
        with _supervisor(folder) as process:
            client = MpsClient(folder / "run" / "supervisor.sock")
            client.info()  # it has found out what the program can do
            found = _served(client)
            found["idle"] = [memory(process.pid)["rss"]]
            found |= _all_cards(client)
            found["resident"] = [memory(process.pid)["rss"]]
            pids = [card.pid for card in client.cards()]
            found["daemon"] = [memory(pid)["rss"] for pid in pids if pid is not None]
            found["restored"] = _killed(client, pids)
        began = time.perf_counter()
        with _supervisor(folder):
            found["takeover"] = [(time.perf_counter() - began) * 1000]
            for card in client.cards():
                client.stop(card.spec.gpu)
    _print(found)
    return found


def _spec(n: int) -> CardSpec:
    gpu = f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'bench.{n}')}"
    return CardSpec(gpu, 20480 * MIB, 25, 2)


@contextmanager
def _supervisor(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = ["--run-dir", folder / "run", "--state-dir", folder / "state"]
    words += ["--control-program", real_program(_VERSION), "--log-level", "warning"]
    if os.geteuid() != 0:
        words += ["--cgroup-root", "none", "--host-shm"]
    with subprocess.Popen([sys.executable, "-m", "mps", *map(str, words)]) as process:
        try:
            _await(MpsClient(folder / "run" / "supervisor.sock"))
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def _await(client: MpsClient) -> None:
    def answers() -> bool:
        try:
            client.cards()
        except MpsUnreachableError:
            return False
        return True

    poll(answers, "the supervisor", 30.0)


def _ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _served(client: MpsClient) -> dict[str, list[float]]:
    cold, gone = [], []
    for n in range(_ROUNDS):
        cold.append(_ms(lambda n=n: client.ensure(_spec(n))))  # type: ignore[misc]
        gone.append(_ms(lambda n=n: client.stop(_spec(n).gpu)))  # type: ignore[misc]
    client.ensure(_spec(0))
    warm = [_ms(lambda: client.ensure(_spec(0))) for _ in range(_WARM)]
    return {"cold": cold, "stop": gone, "warm": warm}


def _all_cards(client: MpsClient) -> dict[str, list[float]]:
    """Ten cards at once, then 48 shares each."""
    specs = [_spec(n) for n in range(_CARDS)]
    with ThreadPoolExecutor(_CARDS) as pool:
        together = _ms(lambda: list(pool.map(client.ensure, specs)))
        shares = _ms(lambda: list(pool.map(client.ensure, specs * 48)))
    return {"together": [together], "shares": [shares]}


def _killed(client: MpsClient, pids: list[int | None]) -> list[float]:
    """From SIGKILL of a daemon until it is back with its limits."""
    revision, _ = client.changes(0, 0)
    victim = next(pid for pid in pids if pid is not None)
    began = time.perf_counter()
    os.kill(victim, signal.SIGKILL)
    while True:
        revision, cards = client.changes(revision, 10)
        if all(card.running and card.pid != victim for card in cards):
            return [(time.perf_counter() - began) * 1000]


def _print(found: dict[str, Any]) -> None:
    rows = [
        ["a card's first share (cold)", str(summary(found["cold"])), f"{COLD_MS:g} ms"],
        ["a further share (warm)", str(summary(found["warm"])), f"{WARM_MS:g} ms"],
        ["a card is stopped", str(summary(found["stop"])), ""],
        [f"{_CARDS} cards at once", f"{found['together'][0]:.0f}", ""],
        [f"{_CARDS * 48} shares", f"{found['shares'][0]:.0f}", ""],
        ["a killed daemon is back", f"{found['restored'][0]:.0f}", ""],
        ["a new supervisor, from its start", f"{found['takeover'][0]:.0f}", ""],
    ]
    print(table(("MPS", "ms, p50 / p90 / p99", "goal"), rows))
    weights = [
        ["supervisor, one card", f"{found['idle'][0]:.1f}", f"{RESIDENT_MIB:g} MiB"],
        [f"supervisor, {_CARDS} cards", f"{found['resident'][0]:.1f}", f"{RESIDENT_MIB:g} MiB"],
        ["a control daemon", f"{max(found['daemon']):.1f}", ""],
    ]
    print(table(("resident", "MiB", "goal"), weights))
