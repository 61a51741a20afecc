"""Shared devices and claims of shares, small and valid."""

from dataclasses import replace
from typing import Any

from api.policy import NodePolicy, parse_policy
from driver.model.claims import AllocatedClaim, Allocation
from driver.model.devices import MpsGpu, SharedGpu, TimeSlicedGpu
from driver.model.gpu import Gpu
from driver.model.shares import Consumed, MpsFacts, SharingFacts, Wishes
from driver.model.units import Bytes
from driver.plan.allocatable import node_devices
from tests.plan.builders import allocation, claim, gpu, inventory

MIB = 1 << 20
GIB = 1 << 30
V2 = SharingFacts(mps=MpsFacts((2,), multi_user=True), intervals=True)
V3 = SharingFacts(mps=MpsFacts((2, 3), multi_user=True), intervals=True)
PODS = replace(V3, no_cgroup="")
NEW_DRIVER = "615.71.09"
CARD = gpu(0)
MEMORY = 81_008 * MIB  # what card 0 has to share


def policy(**rule: str) -> NodePolicy:
    fields = {"select": "{all: true}", "modes": "[gpu, mps, timeslice, mig]"} | rule
    flow = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return parse_policy(f"gpus: [{{{flow}}}]", "policy.yaml")


def shared_of(
    card: Gpu = CARD, facts: SharingFacts = V2, driver: str = "580.105.08", **rule: str
) -> tuple[MpsGpu, TimeSlicedGpu]:
    """The shared devices of one card."""
    node = replace(inventory(card), driver_version=driver)
    found = node_devices(node, policy(**rule), sharing=facts)
    (mps,) = (each for each in found if isinstance(each, MpsGpu))
    (turns,) = (each for each in found if isinstance(each, TimeSlicedGpu))
    return mps, turns


def part(
    device: SharedGpu,
    memory: int | None = 10 * GIB,
    percent: int | None = 0,
    position: int = 0,
    **changes: Any,
) -> Allocation:
    """An allocation of a share; each has a request of its own."""
    consumed = Consumed(None if memory is None else Bytes(memory), percent, 1)
    made = allocation(
        device,
        position,
        request=f"r{position}",
        share_id=f"7c9e6679-7425-40de-944b-{position:012}",
        consumed=consumed,
    )
    return replace(made, **changes)


def wants(device: SharedGpu, **wishes: Any) -> Allocation:
    return part(device, wishes=Wishes(**wishes))


def of(uid: str, *allocations: Allocation) -> AllocatedClaim:
    return claim(uid, *allocations)
