"""Prepare, again and unprepare of ours and of the Go example driver, in one run."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from bench.booted import CACHED, GO, GO_DEVICES_MOST, OURS, Bed
from bench.calls import KINDS
from bench.client import Measured, Target, Wish, as_json, measure, report
from bench.stats import BUDGETS, percentile, table, verdict
from kubeletplugin.kube import KubeClient

T = TypeVar("T")
AT_ONCE_MS = 1000.0
_CARDS, _OUTSTANDING, _EDGE = 512, 500, 50
_AT_ONCE = 100  # and as many cards


def inside(bed: Bed, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` with its sockets in the cluster's network namespace."""
    with bed.cluster.netns.entered():
        return asyncio.run(work)


def measure_on(bed: Bed, targets: Sequence[Target], wish: Wish) -> Mapping[str, Measured]:
    """``client.measure`` as the cluster's administrator."""

    async def run() -> Mapping[str, Measured]:
        async with KubeClient.from_environment(str(bed.cluster.kubeconfig)) as client:
            return await measure(client, targets, wish)

    return inside(bed, run())


def ratios(found: Mapping[str, Measured]) -> str:
    """Ours over the Go driver's medians, beside the budgets."""
    rows = []
    for label, budget in BUDGETS.items():
        ours, theirs = found[label].times, found["go"].times
        rows.append(
            [label, *(verdict(ours.of(kind), theirs.of(kind), budget[kind]) for kind in KINDS)]
        )
    return table(("of Go (budget)", *KINDS), rows)


def _three(bed: Bed, cards: int) -> tuple[list[Target], list[tuple[Any, str, int]]]:
    """Go's driver gives a device to any number of claims, so it needs no more of them."""
    simulate, go_devices = f"h100-80gb:{cards}", min(cards, GO_DEVICES_MOST)
    drivers = [
        (bed.ours(OURS, simulate), OURS, cards),
        (bed.ours(CACHED, simulate, "--claim-cache"), CACHED, cards),
        (bed.go(go_devices), GO, go_devices),
    ]
    targets = [bed.target("get", OURS), bed.target("cache", CACHED), bed.target("go", GO)]
    return targets, drivers


def claim_by_claim(bed: Bed, count: int) -> dict[str, Any]:
    """8 cards, one claim at a time."""
    targets, drivers = _three(bed, 8)
    with bed.running(drivers):
        found = measure_on(bed, targets, Wish(count=count))
    print(f"\nOne claim at a time, 8 cards, n = {count}\n{report(found)}\n\n{ratios(found)}")
    return as_json(found)


def many(bed: Bed, count: int) -> dict[str, Any]:
    """512 cards with 500 claims outstanding; 100 cards and 100 calls at once."""
    targets, drivers = _three(bed, _CARDS)
    with bed.running(drivers):
        held = measure_on(bed, targets, Wish(count=count, outstanding=_OUTSTANDING))
    targets, drivers = _three(bed, _AT_ONCE)
    with bed.running(drivers):
        burst = measure_on(bed, targets, Wish(count=1, parallel=_AT_ONCE))
    print(f"\n{_OUTSTANDING} claims outstanding, n = {count}\n{report(held)}\n\n{ratios(held)}")
    print(f"\nWhile they came to be\n{_flatness(held)}")
    print(f"\n{_AT_ONCE} calls at once\n{_bursts(burst)}")
    return {"outstanding": as_json(held), "atOnce": as_json(burst)}


def _flatness(found: Mapping[str, Measured]) -> str:
    rows = []
    for label, measured in found.items():
        first, last = (
            percentile(part, 0.5) for part in (measured.filling[:_EDGE], measured.filling[-_EDGE:])
        )
        rows.append([label, f"{first:.2f}", f"{last:.2f}", f"{last / first:.2f}"])
    first_column, last_column = f"p50 of the first {_EDGE}, ms", f"of the last {_EDGE}"
    return table(("prepare", first_column, last_column, "ratio"), rows)


def _bursts(found: Mapping[str, Measured]) -> str:
    rows = []
    for label, measured in found.items():
        total, each = measured.at_once or 0.0, measured.each_at_once or [0.0]
        met = "yes" if total <= AT_ONCE_MS else "NO"
        rows.append([label, f"{total:.0f}", f"{percentile(each, 0.5):.0f}", met])
    return table(("driver", "all answered after ms", "half after", "≤ 1 s"), rows)
