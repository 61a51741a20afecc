"""Records for tests of what is written and done for them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from driver.model.claims import AllocatedClaim, Allocation, ClaimState, Held, Record
from driver.model.gpu import ComputeMode
from driver.model.ids import ClaimUid, DeviceName, GpuUuid, RequestName
from driver.model.steps import SetComputeMode

BOOT = "b0000000-0000-4000-8000-000000000001"
NEXT_BOOT = "b0000000-0000-4000-8000-000000000002"


def uid(n: int) -> ClaimUid:
    return ClaimUid(f"{n:08x}-0000-4000-8000-000000000000")


def gpu(n: int) -> GpuUuid:
    return GpuUuid(f"GPU-{n:08x}-0000-4000-8000-000000000000")


def exclusive(n: int) -> SetComputeMode:
    return SetComputeMode(gpu(n), ComputeMode.EXCLUSIVE_PROCESS)


def record(
    n: int,
    *gpus: int,
    steps: bool = False,
    name: str = "claim",
    boot: str = BOOT,
    extra: Mapping[str, Any] | None = None,
) -> Record:
    """A completed record of claim ``n`` on whole cards; with ``steps``, one step a card."""
    mode = ComputeMode.EXCLUSIVE_PROCESS if steps else None
    allocations = tuple(
        Allocation(
            position=i,
            request=RequestName("gpus"),
            pool="node-1",
            device=DeviceName(f"gpu-{g:08x}"),
            compute_mode=mode,
        )
        for i, g in enumerate(gpus)
    )
    return Record(
        claim=AllocatedClaim(uid(n), "default", name, allocations),
        held=tuple(Held(a, gpu(g), "gpu") for a, g in zip(allocations, gpus, strict=True)),
        steps=tuple(exclusive(g) for g in gpus) if steps else (),
        state=ClaimState.COMPLETED,
        boot_id=boot,
        extra=extra or {},
    )


def planned(record: Record) -> Record:
    """As the plan makes it, before its steps are done."""
    return replace(record, state=ClaimState.STARTED if record.steps else ClaimState.COMPLETED)
