"""Shares at the socket: warm, cold (the card's daemon starts), warm beside cold, 480 of them.

With NVIDIA's own control program, which runs without a GPU, under the node's supervisor.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

from bench.booted import OURS, Bed
from bench.calls import PAUSE_S, Socket, connected
from bench.claims import Offer
from bench.node import memory
from bench.prepare import inside
from bench.stats import percentile, summary, table
from bench.stored import Stored, published, stored
from e2e.cluster.processes import ManagedProcess
from e2e.sharing import remove_groups, start_supervisor
from kubeletplugin.contract import ClaimRef
from kubeletplugin.kube import KubeClient
from mps.client import MpsClient

WARM_MS, WARM_99_MS, COLD_MS, SUPERVISOR_MIB = 5.0, 20.0, 300.0, 30.0
_CARDS, _SHARES, _COLD = 10, 48, 50
_POLICY = f"gpus: [{{select: {{all: true}}, modes: [gpu, mps], defaultShares: {_SHARES}}}]\n"


@dataclass(frozen=True, slots=True)
class _Node:
    """What runs on the node of the bench."""

    plugin: ManagedProcess
    supervisor: ManagedProcess
    client: MpsClient

    def resident(self) -> list[float]:
        """MiB of plugin and supervisor."""
        return [memory(each.pid)["rss"] for each in (self.plugin, self.supervisor)]

    def daemons(self) -> list[float]:
        """MiB of each control daemon."""
        pids = [card.pid for card in self.client.cards()]
        return [memory(pid)["rss"] for pid in pids if pid is not None]


def shared(bed: Bed, count: int) -> dict[str, Any]:
    """Prints tables; returns every value: milliseconds, seconds (``…_s``), MiB."""
    with _node(bed) as node:
        found = inside(bed, _measure(bed, node, count))
    with _node(bed, "--claim-cache"):
        found |= inside(bed, _from_the_cache(bed, count))
    _print(found)
    return found


@contextmanager
def _node(bed: Bed, *more: str) -> Iterator[_Node]:
    policy = bed.cluster.layout.root / "bench-shares.yaml"
    policy.write_text(_POLICY)
    supervisor, run_dir = start_supervisor(bed.cluster)
    socket = run_dir / "supervisor.sock"
    options = (f"--config={policy}", f"--mps-socket={socket}", *more)
    plugin = bed.ours(OURS, f"h100-80gb:{_CARDS}", *options)
    try:
        with bed.running([(plugin, OURS, 2 * _CARDS)]):
            yield _Node(plugin, supervisor, MpsClient(socket))
    finally:
        supervisor.stop()
        remove_groups()


async def _measure(bed: Bed, node: _Node, count: int) -> dict[str, Any]:
    async with (
        KubeClient.from_environment(str(bed.cluster.kubeconfig)) as api,
        stored(api, "default") as claims,
    ):
        found = await published(api, OURS)
        offers = [each for each in found if each.shared]
        whole = await claims.make(OURS, [each for each in found if not each.shared][2:], count)
        cold = await claims.make(OURS, offers[:1], min(count, _COLD))
        warm = await claims.make(OURS, offers[1:2], min(count, _SHARES))
        with connected("ours", bed.socket(OURS)) as socket:
            times = _single(socket, cold, warm, count)
            times["whole"] = [_whole(socket, ref) for ref in whole]
            return times | await _many(socket, node, claims, offers)


def _single(
    socket: Socket, cold: Sequence[ClaimRef], warm: Sequence[ClaimRef], count: int
) -> dict[str, Any]:
    holder, *others = warm
    times: dict[str, list[float]] = {"cold": [], "ended": []}
    for ref in cold:
        _turn(socket, ref, times["cold"], times["ended"])
    socket.prepare(holder)
    times["warm"], times["given"] = _warm(socket, others, count)
    times |= _beside(socket, cold, others)
    socket.unprepare(holder)
    return times


def _warm(socket: Socket, refs: Sequence[ClaimRef], count: int) -> tuple[list[float], list[float]]:
    """While somebody has a share of the card: each prepared and unprepared."""
    came: list[float] = []
    went: list[float] = []
    while len(came) < count:
        for ref in refs:
            _turn(socket, ref, came, went)
    return came, went


async def _from_the_cache(bed: Bed, count: int) -> dict[str, list[float]]:
    async with (
        KubeClient.from_environment(str(bed.cluster.kubeconfig)) as api,
        stored(api, "default") as claims,
    ):
        offers = [each for each in await published(api, OURS) if each.shared]
        holder, *others = await claims.make(OURS, offers[:1], min(count, _SHARES))
        with connected("cache", bed.socket(OURS)) as socket:
            socket.prepare(holder)
            times = _warm(socket, others, count)[0]
            socket.unprepare(holder)
            return {"cached": times}


def _whole(socket: Socket, ref: ClaimRef) -> float:
    took: list[float] = []
    _turn(socket, ref, took, [])
    return took[0]


def _turn(socket: Socket, ref: ClaimRef, came: list[float], went: list[float]) -> None:
    came.append(socket.paused_prepare(ref))
    time.sleep(PAUSE_S)
    went.append(socket.unprepare(ref))


def _beside(
    socket: Socket, cold: Sequence[ClaimRef], warm: Sequence[ClaimRef]
) -> dict[str, list[float]]:
    """One card's daemon starts and ends all the time, while another card gets shares."""
    busy: list[float] = []

    def start_and_end() -> None:
        for ref in cold:
            _turn(socket, ref, busy, [])

    worker = Thread(target=start_and_end)
    worker.start()
    beside: list[float] = []
    while worker.is_alive():
        for ref in warm[:4]:
            _turn(socket, ref, beside, [])
    worker.join()
    return {"beside": beside, "busy": busy}


async def _many(
    socket: Socket, node: _Node, claims: Stored, offers: Sequence[Offer]
) -> dict[str, Any]:
    refs = await claims.make(OURS, offers, len(offers) * _SHARES)
    before = node.resident()
    began = time.perf_counter()
    each = [socket.prepare(ref) for ref in refs]
    filled = time.perf_counter() - began
    after, daemons = node.resident(), node.daemons()
    began = time.perf_counter()
    for ref in refs:
        socket.unprepare(ref)
    emptied = time.perf_counter() - began
    together, _ = socket.prepare_at_once(refs)
    for ref in refs:
        socket.unprepare(ref)
    return {
        "many": each,
        "filled_s": filled,
        "emptied_s": emptied,
        "together_s": together / 1e3,
        "before": before,
        "after": after,
        "daemons": daemons,
    }


def _print(found: dict[str, Any]) -> None:
    goals = {
        "a card's first share (cold)": ("cold", f"p50 {COLD_MS:g}"),
        "its end, the daemon's too": ("ended", ""),
        "a further share (warm)": ("warm", f"p50 {WARM_MS:g}, p99 {WARM_99_MS:g}"),
        "the same, claims from the cache": ("cached", f"p50 {WARM_MS:g}, p99 {WARM_99_MS:g}"),
        "its end": ("given", ""),
        "a whole card, to compare": ("whole", ""),
        "warm, while another card starts its daemon": ("beside", ""),
        "those starts": ("busy", ""),
    }
    rows = [
        [text, len(found[key]), str(summary(found[key])), goal]
        for text, (key, goal) in goals.items()
    ]
    print("\nShares at the socket")
    print(table(("call", "n", "ms, p50 / p90 / p99", "goal, ms"), rows))
    edge, many = _SHARES, found["many"][_CARDS:]  # without the starts
    first, last = percentile(many[:edge], 0.5), percentile(many[-edge:], 0.5)
    whole = [
        ["prepared one by one", f"{found['filled_s']:.1f} s", ""],
        ["the same, all calls at once", f"{found['together_s']:.1f} s", ""],
        ["unprepared one by one", f"{found['emptied_s']:.1f} s", ""],
        [f"p50 of the last {edge} over that of the first", f"{last / first:.2f}", ""],
        ["plugin, empty", f"{found['before'][0]:.1f} MiB", ""],
        ["plugin, full", f"{found['after'][0]:.1f} MiB", ""],
        ["supervisor, empty", f"{found['before'][1]:.1f} MiB", ""],
        ["supervisor, full", f"{found['after'][1]:.1f} MiB", f"{SUPERVISOR_MIB:g} MiB"],
        ["a control daemon, at most", f"{max(found['daemons']):.1f} MiB", ""],
    ]
    print(table((f"{_CARDS * _SHARES} shares of {_CARDS} cards", "found", "goal"), whole))
