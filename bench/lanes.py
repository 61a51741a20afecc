"""Whether a call waits for the work on another claim's card."""

import time
from collections.abc import Sequence
from threading import Thread
from typing import Any

from bench.booted import OURS, Bed
from bench.calls import PAUSE_S, Socket, connected
from bench.prepare import inside
from bench.stats import summary, table
from bench.stored import published, stored
from driver.sim import control
from kubeletplugin.contract import ClaimRef
from kubeletplugin.kube import KubeClient

_SLOW_S = 3.0
_CALL = "nvmlDeviceSetComputeMode"
_EXCLUSIVE = {
    "apiVersion": "gpu.aliquot.dev/v1alpha1",
    "kind": "GpuConfig",
    "computeMode": "ExclusiveProcess",
}


def slow_card(bed: Bed, count: int) -> dict[str, Any]:
    """Prepares of other cards, alone and while the mode of one card takes seconds to set."""
    simulate = "h100-80gb:8"
    process = bed.ours(OURS, simulate)
    with bed.running([(process, OURS, 8)]):
        found = inside(bed, _measure(bed, simulate, count))
    alone, beside = summary(found["alone"]), summary(found["beside"])
    rows = [
        ["one card's own prepare", 1, f"{found['slow'][0]:.0f}"],
        ["others, alone", alone.n, str(alone)],
        ["others, meanwhile", beside.n, str(beside)],
    ]
    print(f"\nA card whose {_CALL} takes {_SLOW_S:g} s")
    print(table(("prepare", "n", "ms, p50 / p90 / p99"), rows))
    return found


async def _measure(bed: Bed, simulate: str, count: int) -> dict[str, list[float]]:
    async with (
        KubeClient.from_environment(str(bed.cluster.kubeconfig)) as client,
        stored(client, "default") as claims,
    ):
        first, *others = await published(client, OURS)
        (slow,) = await claims.make(OURS, [first], 1, _EXCLUSIVE)
        refs = await claims.make(OURS, others, count)
        with connected("ours", bed.socket(OURS)) as socket:
            alone = [_turn(socket, ref) for ref in refs]
            control.set_latency(bed.sim(OURS, simulate), _CALL, _SLOW_S)
            try:
                took, beside = _beside(socket, slow, refs)
            finally:
                control.set_latency(bed.sim(OURS, simulate), _CALL, 0)
                socket.unprepare(slow)
    return {"slow": took, "alone": alone, "beside": beside}


def _beside(
    socket: Socket, slow: ClaimRef, refs: Sequence[ClaimRef]
) -> tuple[list[float], list[float]]:
    took: list[float] = []
    worker = Thread(target=lambda: took.append(socket.prepare(slow)))
    worker.start()
    beside = []
    for ref in refs:
        if not worker.is_alive():
            break
        beside.append(_turn(socket, ref))
    worker.join()
    return took, beside


def _turn(socket: Socket, ref: ClaimRef) -> float:
    took = socket.paused_prepare(ref)
    time.sleep(PAUSE_S)
    socket.unprepare(ref)
    return took
