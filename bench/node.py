"""The plugin as a process: how soon it publishes, what it weighs, what it writes when idle."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.booted import GO, OURS, Bed
from bench.calls import connected
from bench.prepare import inside
from bench.stats import percentile, table
from bench.stored import published, stored
from e2e.cluster.kube import Object
from e2e.cluster.polling import poll
from e2e.cluster.processes import ManagedProcess
from kubeletplugin.contract import ClaimRef
from kubeletplugin.kube import KubeClient

FIRST_MS, IDLE_MIB, FULL_MIB = 1000.0, 90.0, 105.0
WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
OURS_TO_WRITE = frozenset({"resourceslices", "resourceclaims"})
_STARTS, _SETTLE_S, _CLAIMS, _CARDS = 5, 30.0, 500, 512
_EVERY_S = 0.02  # each look costs the API server and this machine CPU


def memory(pid: int, proc: Path = Path("/proc")) -> dict[str, float]:
    """MiB: ``rss`` is what counts against a pod's limit, ``pss`` shares out shared pages."""
    status = (proc / str(pid) / "status").read_text()
    rollup = (proc / str(pid) / "smaps_rollup").read_text()
    return {"rss": _kib(status, "VmRSS") / 1024, "pss": _kib(rollup, "Pss") / 1024}


def _kib(text: str, key: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])


def writes(metrics: str) -> float:
    """Writes so far of the kinds that a plugin may write, but for Events, out of the API server's
    /metrics (``apiserver_request_total``). Dry runs are not counted: they store nothing."""
    total = 0.0
    for line in metrics.splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        labels, _, value = line.rpartition(" ")
        of = dict(part.split("=", 1) for part in _labels(labels))
        if of["verb"] in WRITES and of["resource"] in OURS_TO_WRITE and not of.get("dry_run"):
            total += float(value)
    return total


def _labels(text: str) -> Sequence[str]:
    inner = text.partition("{")[2].rstrip("}")
    return [part.replace('"', "") for part in inner.split(",") if part]


def _first_slice(bed: Bed, process: ManagedProcess, driver: str) -> float:
    """Milliseconds from the start of the process to its first ResourceSlice with devices."""
    started = time.perf_counter()
    process.launch()
    poll(lambda: bed.devices(driver) > 0, f"a ResourceSlice of {driver}", interval_s=_EVERY_S)
    return (time.perf_counter() - started) * 1e3


def _slices(bed: Bed, driver: str) -> list[Object]:
    return bed.cluster.kube.list("ResourceSlice", fields=f"spec.driver={driver}")


def _forget_slices(bed: Bed, driver: str) -> None:
    for each in _slices(bed, driver):
        bed.cluster.kube.delete("ResourceSlice", each["metadata"]["name"])


def starts(bed: Bed) -> dict[str, Any]:
    """Starts on a node that has none of the driver's ResourceSlices, ours and Go's in turn."""
    took: dict[str, list[float]] = {"ours": [], "go": []}
    for _ in range(_STARTS):
        for label, driver, process in (
            ("ours", OURS, bed.ours(OURS, "h100-80gb:8")),
            ("go", GO, bed.go(8)),
        ):
            _forget_slices(bed, driver)
            took[label].append(_first_slice(bed, process, driver))
            process.stop()
    rows = [
        [label, f"{percentile(ms, 0.5):.0f}", f"{min(ms):.0f}", f"{max(ms):.0f}"]
        for label, ms in took.items()
    ]
    print(f"\nProcess start to first ResourceSlice, n = {_STARTS}, goal ≤ {FIRST_MS:.0f} ms")
    print(table(("driver", "p50 ms", "min", "max"), rows))
    return took


def weight(bed: Bed) -> dict[str, Any]:
    """Resident memory idle, and with 500 prepared claims on 512 cards."""
    found: dict[str, Any] = {}
    small, big = bed.ours(OURS, "h100-80gb:8"), bed.ours(OURS, f"h100-80gb:{_CARDS}")
    with bed.running([(small, OURS, 8)]):
        time.sleep(_SETTLE_S)
        found["8 cards, idle"] = memory(small.pid)
    with bed.running([(big, OURS, _CARDS)]):
        time.sleep(_SETTLE_S)
        found[f"{_CARDS} cards, idle"] = memory(big.pid)
        _prepared(bed, lambda: found.update({f"… {_CLAIMS} claims": memory(big.pid)}))
    rows = [[name, f"{of['rss']:.1f}", f"{of['pss']:.1f}"] for name, of in found.items()]
    print(f"\nMemory, goals ≤ {IDLE_MIB:g} MiB idle, ≤ {FULL_MIB:g} MiB with {_CLAIMS} claims")
    print(table(("our plugin", "RSS MiB", "PSS MiB"), rows))
    return found


def _prepared(bed: Bed, look: Callable[[], None]) -> None:
    """Prepare 500 claims, look when all is written, and take them back."""

    async def run() -> None:
        async with (
            KubeClient.from_environment(str(bed.cluster.kubeconfig)) as client,
            stored(client, "default") as claims,
        ):
            refs = await claims.make(OURS, await published(client, OURS), _CLAIMS)
            await asyncio.to_thread(_hold, bed, refs, look)

    inside(bed, run())


def _hold(bed: Bed, refs: Sequence[ClaimRef], look: Callable[[], None]) -> None:
    with connected("ours", bed.socket(OURS)) as socket:
        for ref in refs:
            socket.prepare(ref)
        time.sleep(_SETTLE_S)
        look()
        for ref in refs:
            socket.unprepare(ref)


def idle(bed: Bed, minutes: float) -> dict[str, Any]:
    """API writes while nothing happens, and what a restart rewrites."""
    kube = bed.cluster.kube
    process = bed.ours(OURS, "h100-80gb:8")
    with bed.running([(process, OURS, 8)]):
        time.sleep(_SETTLE_S)
        before, events = writes(kube.raw("/metrics").text()), _events(bed)
        time.sleep(minutes * 60)
        written = writes(kube.raw("/metrics").text()) - before
        told = len(_events(bed) - events)
        versions = _versions(bed)
        process.restart()
        time.sleep(_SETTLE_S)
        kept = _versions(bed) == versions
    rows: list[list[object]] = [
        [
            f"writes of ResourceSlices and claims in {minutes:g} idle minutes",
            f"{written:.0f}",
            "0",
        ],
        ["Events written meanwhile", told, "0"],
        ["ResourceSlices unchanged over a restart", "yes" if kept else "NO", "yes"],
    ]
    print("\n" + table(("our plugin, 8 cards", "found", "goal"), rows))
    return {"minutes": minutes, "writes": written, "events": told, "slicesKept": kept}


def _versions(bed: Bed) -> dict[str, str]:
    return {
        each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in _slices(bed, OURS)
    }


def _events(bed: Bed) -> set[tuple[str, str]]:
    """Our Events with their versions: a repeat changes one in place."""
    found = bed.cluster.kube.request("GET", "/apis/events.k8s.io/v1/events")["items"]
    return {
        (each["metadata"]["uid"], each["metadata"]["resourceVersion"])
        for each in found
        if each.get("reportingController") == OURS
    }
