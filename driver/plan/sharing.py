"""The shared devices that cards could have, and how their MPS daemons run."""

from collections.abc import Iterator
from dataclasses import replace

from api.policy import SHARED_MODES, GpuPolicy, NodePolicy
from api.policy_sharing import MOST_SHARES, ShareSize
from driver.model.devices import MpsGpu, SharedGpu, TimeSlicedGpu
from driver.model.gpu import Gpu, Inventory
from driver.model.ids import DeviceName, GpuUuid
from driver.model.shares import Limits, MpsFacts, SharingFacts
from driver.model.steps import ServeMps, TimeSliceInterval
from driver.model.units import Bytes, binary_quantity
from driver.plan.limits import CGROUP
from driver.plan.names import device_names, mps_name, timeslice_name
from driver.plan.partitions import rule_of, whole_toggle
from driver.plan.topology import pci_order

_MIB = 1 << 20
_VOLTA = (7, 0)  # compute capability; before it MPS has no limits
_NEW_BRANCH = 615  # of the NVIDIA driver: the first with MPS namespaces and limits by cgroup
_LEAST = 2 * _MIB  # of a capacity with steps of 1Mi from 1Mi on

NO_SHARING = SharingFacts()


def shared_devices(
    inventory: Inventory, policy: NodePolicy, facts: SharingFacts
) -> tuple[SharedGpu, ...]:
    """Every shared device that the node could have, offered or not: MPS, then time slices.

    Shares fill cards from the first PCI address upward, while whole cards are taken from the last
    downward (``allocatable.whole_order``).
    """
    cards = sorted(inventory.gpus, key=lambda gpu: pci_order(gpu.pci))
    names = device_names(gpu.uuid for gpu in cards)
    known = facts.mps or MpsFacts()
    protocol = _protocol(known, inventory.driver_version)
    no_cgroup = why_no_cgroup(facts.no_cgroup, inventory.driver_version)
    rules = [(names[gpu.uuid], gpu, rule_of(gpu, policy)) for gpu in cards]
    found = (_mps(name, gpu, rule, protocol, known.multi_user) for name, gpu, rule in rules)
    mps = (each and _limited(each, no_cgroup) for each in found)
    turns = (_turns(name, gpu, rule, facts.intervals) for name, gpu, rule in rules)
    return (*(each for each in mps if each is not None), *turns)


def without_room(inventory: Inventory, policy: NodePolicy) -> Iterator[tuple[GpuUuid, str]]:
    """Cards that the policy lets be shared and leaves no memory for it, with the reason."""
    for gpu in sorted(inventory.gpus, key=lambda gpu: pci_order(gpu.pci)):
        rule = policy.rule_for(gpu.uuid, gpu.product, gpu.pci)
        why = _no_room(gpu, rule.policy)
        if why:
            yield (
                gpu.uuid,
                f"{gpu.product} at {gpu.pci} has no room for shares: {rule.path}.{why}; lower it, "
                "or give the card a rule of its own",
            )


def _no_room(gpu: Gpu, rule: GpuPolicy) -> str:
    """The setting that leaves none; empty where there is room, or the card has no memory of its
    own."""
    sharing, left = rule.sharing, _divisible(gpu, rule)
    whole = Bytes(gpu.memory - gpu.reserved)
    if whole < _LEAST or not set(rule.modes) & set(SHARED_MODES):
        return ""
    if left < _LEAST:
        reserve = binary_quantity(Bytes(sharing.reserve))
        return f"reserve is {reserve} of {binary_quantity(whole)} that they could have"
    if "mps" not in rule.modes:
        return ""
    size = sharing.share_size
    if size is not None and size.memory > left:
        wanted = binary_quantity(Bytes(size.memory))
        return f"shareSize.memory is {wanted}, and they have {binary_quantity(left)}"
    if size is None and _default_size(left, sharing.default_shares).memory < _MIB:
        count = sharing.default_shares
        return f"defaultShares is {count} of {binary_quantity(left)}, less than 1Mi for each"
    return ""


def _protocol(facts: MpsFacts, driver_version: str) -> int:
    """3 where both sides have it: the control program, and the driver that enforces."""
    return 3 if 3 in facts.protocols and has_new_driver(driver_version) else 2


def has_new_driver(driver_version: str) -> bool:
    """Whether it has MPS namespaces and memory limits by cgroup."""
    branch = driver_version.partition(".")[0]
    return branch.isdigit() and int(branch) >= _NEW_BRANCH


def why_no_cgroup(problem: str, driver_version: str) -> str:
    """Why the memory of shares is not limited by cgroup; empty where it is. ``problem``: what the
    node lacks for it beside the driver."""
    if not has_new_driver(driver_version):
        return f"the NVIDIA driver is {driver_version or 'unknown'}, R{_NEW_BRANCH} has it first"
    return problem


def _limited(device: MpsGpu, no_cgroup: str) -> MpsGpu:
    """Of MPS's own limits, those for compute stay what they are."""
    if no_cgroup:
        return replace(device, no_cgroup=no_cgroup)
    return replace(device, limits=Limits(CGROUP, device.limits.compute))


def _mps(
    name: DeviceName, gpu: Gpu, rule: GpuPolicy, protocol: int, multi_user: bool
) -> MpsGpu | None:
    """None where the card cannot be shared with limits: too old, without memory of its own (GB10
    uses the host's), or smaller than one share."""
    memory, sharing = _divisible(gpu, rule), rule.sharing
    size = sharing.share_size or _default_size(memory, sharing.default_shares)
    if gpu.compute_capability < _VOLTA or memory < max(_LEAST, size.memory) or size.memory < _MIB:
        return None
    equal = sharing.share_size is not None
    percent = size.compute_percent
    return MpsGpu(
        name=mps_name(name),
        gpu=gpu,
        memory=memory,
        serve=ServeMps(
            gpu.uuid,
            memory_limit=size.memory if equal else memory,
            compute_percent=percent if equal and percent else 100,
            protocol=protocol,
        ),
        limits=_limits(protocol, sharing.share_size),
        default_memory=Bytes(size.memory),
        default_percent=percent or 0,
        shares=_count(memory, size) if equal else MOST_SHARES,
        equal=equal,
        multi_user=multi_user,
        toggle=whole_toggle(gpu, rule),
    )


def _turns(name: DeviceName, gpu: Gpu, rule: GpuPolicy, settable: bool) -> TimeSlicedGpu:
    wish = rule.sharing.interval
    return TimeSlicedGpu(
        name=timeslice_name(name),
        gpu=gpu,
        memory=_divisible(gpu, rule),
        shares=rule.sharing.replicas,
        interval=TimeSliceInterval[wish.upper()] if wish and settable else None,
        settable=settable,
        toggle=whole_toggle(gpu, rule),
    )


def _divisible(gpu: Gpu, rule: GpuPolicy) -> Bytes:
    """What shares may have together: neither the driver's reserve nor the policy's."""
    left = gpu.memory - gpu.reserved - rule.sharing.reserve
    return Bytes(max(left, 0) // _MIB * _MIB)


def _default_size(memory: Bytes, count: int | None) -> ShareSize:
    """Of a share without numbers: all of the card, or one of so many parts of it."""
    if count is None:
        return ShareSize(memory)
    return ShareSize(memory // count // _MIB * _MIB, 100 // count)


def _count(memory: Bytes, size: ShareSize) -> int:
    by_compute = 100 // size.compute_percent if size.compute_percent else MOST_SHARES
    return min(MOST_SHARES, memory // size.memory, by_compute)


def _limits(protocol: int, equal: ShareSize | None) -> Limits:
    """What a share's limits are worth at least (design 9.1)."""
    if protocol >= 3:
        return Limits("mpsNamespace", "mpsNamespace")
    if equal is None:
        return Limits("mpsCooperative", "mpsCooperative")
    return Limits("mpsProcess", "mpsProcess" if equal.compute_percent else "mpsCooperative")
