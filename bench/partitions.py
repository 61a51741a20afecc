"""Partitions made and destroyed at the socket, alone and with hundreds of them prepared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from api.policy import GpuPolicy, GpuRule, GpuSelector, NodePolicy
from bench.booted import OURS, Bed
from bench.client import Measured, Wish, as_json, report
from bench.cutting import split
from bench.prepare import measure_on
from bench.stats import percentile, table
from cli import offline
from driver.plan.allocatable import allocatable

_BOARD, PROFILE = "h100-80gb", "1g.10gb"
_CARDS, _OUTSTANDING, _EDGE = 64, 400, 50  # seven of them fit on a card
_POLICY = "gpus: [{select: {all: true}, modes: [gpu, mig]}]\n"
_MODES = NodePolicy(gpus=(GpuRule(GpuSelector(), GpuPolicy(("gpu", "mig"))),))


def _names(bed: Bed, profile: str) -> tuple[str, ...]:
    """Published devices of a profile."""
    slices = bed.cluster.kube.list("ResourceSlice", fields=f"spec.driver={OURS}")
    return tuple(
        device["name"]
        for each in slices
        for device in each["spec"].get("devices") or ()
        if device["attributes"].get("profile", {}).get("string") == profile
    )


def made(bed: Bed, count: int) -> dict[str, Any]:
    """Prepare, again and unprepare of a 1g: 8 cards, then with hundreds of them outstanding."""
    policy = bed.cluster.layout.root / "bench-mig.yaml"
    policy.write_text(_POLICY)
    few = _measured(bed, policy, 8, Wish(count=min(count, 56)))
    full = _measured(bed, policy, _CARDS, Wish(count=48, outstanding=_OUTSTANDING))
    print(f"\n{PROFILE} made and destroyed, 8 cards\n{report(few)}")
    print(f"\nWith {_OUTSTANDING} of them prepared on {_CARDS} cards\n{report(full)}")
    print(_flatness(full["mig"].filling))
    print(f"\n{split(_MODES, _BOARD, _CARDS, PROFILE, _OUTSTANDING)}")
    return {"few": as_json(few), "outstanding": as_json(full)}


def _measured(bed: Bed, policy: Path, cards: int, wish: Wish) -> Mapping[str, Measured]:
    process = bed.ours(OURS, f"{_BOARD}:{cards}", f"--config={policy}")
    devices = allocatable(offline.inventory(_BOARD, cards, "bench"), _MODES)
    with bed.running([(process, OURS, len(devices))]):
        names = _names(bed, PROFILE)
        wanted = Wish(wish.count, wish.outstanding, devices=names)
        return measure_on(bed, [bed.target("mig", OURS)], wanted)


def _flatness(filling: Sequence[float]) -> str:
    first, last = (percentile(part, 0.5) for part in (filling[:_EDGE], filling[-_EDGE:]))
    row = ["prepare", f"{first:.2f}", f"{last:.2f}", f"{last / first:.2f}"]
    header = ("call", f"p50 of the first {_EDGE}, ms", f"of the last {_EDGE}", "ratio")
    return "\n" + table(header, [row])
