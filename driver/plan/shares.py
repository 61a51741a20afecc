"""Shares of a card: what an allocation gets of it beside those who have shares already."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NoReturn

from api.v1alpha1 import ENFORCEMENT
from driver.errors import ClaimError, DeviceConflictError, DeviceHeldError, InvalidConfigError
from driver.model.claims import AllocatedClaim, Allocation, Held
from driver.model.devices import MpsGpu, SharedGpu, TimeSlicedGpu
from driver.model.ids import ClaimUid
from driver.model.shares import Limits, Share
from driver.model.steps import ServeMps, TimeSliceInterval
from driver.model.units import Bytes, binary_quantity
from driver.plan.kinds import NO_LIMITS
from driver.plan.limits import CGROUP

MIB = 1 << 20
_NAMED = 3  # holders in an error's text
_UUID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Holder:
    """An allocation and whose it is; never one with admin access."""

    held: Held
    claim: AllocatedClaim


@dataclass(frozen=True, slots=True)
class Taken:
    """``consumedCapacity`` that was found sound, memory in whole MiB."""

    memory: Bytes
    percent: int  # 0: no cap


def taken(device: SharedGpu, allocation: Allocation) -> Taken:
    """What the scheduler counted for this allocation, rounded down where it is no whole MiB.

    Raises:
        ClaimError: it is missing, zero, or more than the card has.
    """
    which = f"allocation {allocation.position} ({device.name})"
    consumed = allocation.consumed
    if allocation.share_id is None or consumed is None:
        lacks = "shareID" if allocation.share_id is None else "consumedCapacity"
        raise ClaimError(
            f"{which} has no {lacks}, though the device may be allocated many times: the "
            "scheduler lacks the feature gate DRAConsumableCapacity; turn it on there and delete "
            "the pod, so that the claim is allocated again"
        )
    if not consumed.shares:
        _refuse(which, "shares", consumed.shares, "1 or more")
    memory, percent = consumed.memory or 0, consumed.compute_percent or 0
    if isinstance(device, MpsGpu):
        if memory < MIB:
            _refuse(which, "memory", consumed.memory, "at least 1Mi")
        if consumed.compute_percent is None or percent > 100:
            _refuse(which, "computePercent", consumed.compute_percent, "0 to 100")
    if memory > device.memory:
        most = binary_quantity(device.memory)
        _refuse(which, "memory", memory, f"at most {most}, which is what the card has to share")
    return Taken(Bytes(memory // MIB * MIB), percent)


def is_whole(device: SharedGpu, allocation: Allocation) -> bool:
    """Whether this share is all of the card, so that nobody can have one beside it: it is
    prepared as a whole card, without MPS (design 6.4).

    Raises:
        ClaimError: as ``taken``.
    """
    got = taken(device, allocation)
    if isinstance(device, TimeSlicedGpu):
        return False
    memory, percent = _limits(got, allocation)
    return memory >= device.memory and percent is None


def check_room(
    device: SharedGpu, allocation: Allocation, sharers: Sequence[Holder], claim: AllocatedClaim
) -> None:
    """The last line of defence: shares fit on the card together.

    Raises:
        ClaimError: one request got the same card twice.
        DeviceHeldError: those who have shares leave too little.
    """
    for other in sharers:
        if other.claim is claim and other.held.allocation.request == allocation.request:
            raise ClaimError(
                f"request {allocation.request} of claim {claim} got device {device.name} more "
                "than once, as schedulers before Kubernetes 1.36 do with a count above 1: ask for "
                "each share by a request of its own"
            )
    got = taken(device, allocation)
    shares = [other.held.share for other in sharers if other.held.share is not None]
    if len(sharers) >= device.shares:
        _full(device, claim, sharers, f"all of its {device.shares} shares are")
    if isinstance(device, TimeSlicedGpu):
        return
    memory = device.memory - sum(share.memory for share in shares)
    if got.memory > memory:
        left = binary_quantity(Bytes(max(memory, 0)))
        want = binary_quantity(got.memory)
        _full(device, claim, sharers, f"{left} are left of its memory and {want} wanted, the rest")
    percent = 100 - sum(share.compute_percent for share in shares)
    if got.percent > percent:
        left = f"{max(percent, 0)} % are left of its compute and {got.percent} % wanted, the rest"
        _full(device, claim, sharers, left)


def mps_share(
    device: MpsGpu, allocation: Allocation, serve: ServeMps, claim: AllocatedClaim
) -> Share:
    """The share and by what it is limited while the card's daemon runs as ``serve`` says.

    Raises:
        ClaimError: limits are worth less than the config demands.
        InvalidConfigError: the config is not for a share.
    """
    check_kind(device, allocation, "interval", "computeMode")
    got = taken(device, allocation)
    memory, percent = _limits(got, allocation)
    limits = _worth(serve, memory, percent)
    if not device.no_cgroup:
        limits = Limits(CGROUP, limits.compute)
    check_enforcement(allocation, limits, capped=percent is not None, no_cgroup=device.no_cgroup)
    named = namespace_name(claim.uid, allocation.position) if serve.has_namespaces else None
    return Share(
        memory=got.memory,
        compute_percent=got.percent,
        limits=limits,
        memory_limit=memory,
        percent_limit=percent,
        multi_user=device.multi_user,
        namespace=named,
    )


def time_share(device: TimeSlicedGpu, allocation: Allocation, sharers: Sequence[Holder]) -> Share:
    """A turn on the card, at the interval that is set already where somebody has one.

    Raises:
        ClaimError: a limit is demanded, which time slices do not have.
        InvalidConfigError: the config is not for a time slice, or asks for an interval that the
            node cannot set.
        DeviceConflictError: another claim set another interval.
    """
    check_kind(device, allocation, "memoryLimit", "computePercentLimit", "computeMode")
    check_enforcement(allocation, NO_LIMITS, capped=True)
    got = taken(device, allocation)
    interval = _interval(device, allocation, sharers)
    return Share(got.memory, got.percent, NO_LIMITS, interval=interval)


def check_kind(device: SharedGpu, allocation: Allocation, *foreign: str) -> None:
    """A config that this kind of device would ignore is refused.

    Raises:
        InvalidConfigError: one of the ``foreign`` fields is configured.
    """
    asked = {
        "interval": allocation.wishes.interval,
        "memoryLimit": allocation.wishes.memory_limit,
        "computePercentLimit": allocation.wishes.percent_limit,
        "computeMode": allocation.compute_mode,
    }
    if wrong := [key for key in foreign if asked[key] is not None]:
        raise InvalidConfigError([not_for(key, device.name) for key in wrong])


def check_enforcement(
    allocation: Allocation, limits: Limits, *, capped: bool, no_cgroup: str = ""
) -> None:
    """A config's ``requireEnforcement``; compute counts where it is capped at all. ``no_cgroup``:
    why memory is not limited by cgroup.

    Raises:
        ClaimError: what limits the device is weaker.
    """
    wanted = ENFORCEMENT.index(allocation.wishes.require)
    weak = [("memory", limits.memory)] if ENFORCEMENT.index(limits.memory) < wanted else []
    if wanted == ENFORCEMENT.index(CGROUP):
        wanted -= 1  # there is none for compute; the next weaker is its strongest
    if capped and ENFORCEMENT.index(limits.compute) < wanted:
        weak.append(("compute", limits.compute))
    if weak:
        found = " and ".join(f"{what} is limited by {by}" for what, by in weak)
        here = f" (here: {no_cgroup})" if no_cgroup else ""
        raise ClaimError(
            f"device {allocation.device}: its config demands limits that are worth at least "
            f"{allocation.wishes.require} (requireEnforcement), but {found}; mpsProcess needs "
            "equal shares (shareSize in the node policy), mpsNamespace the NVIDIA driver R615, "
            f"cgroup that driver and cgroup v2{here}, hardware a MIG partition or a whole card"
        )


def namespace_name(uid: ClaimUid, position: int) -> str:
    """``5f0e6f0a8f1b…_0``: [a-z0-9_], at most 64 characters, and short: it becomes a part of a
    path of which MPS takes 87 bytes."""
    digits = uid.lower().replace("-", "")
    if len(digits) > _UUID_DIGITS or not (digits.isascii() and digits.isalnum()):
        digits = sha256(uid.encode()).hexdigest()[:_UUID_DIGITS]
    return f"{digits}_{position}"


def share_text(held: Held) -> str:
    """What somebody has of a shared card, for messages."""
    if held.share is None:
        return "the whole card"
    if held.type == "timeslice":
        return "a turn"
    return f"a share of {binary_quantity(held.share.memory)}"


def _limits(got: Taken, allocation: Allocation) -> tuple[Bytes, int | None]:
    """What may be used: what was consumed, or less where the config says so. 0 and 100 % are no
    cap; a config's own cap holds then too."""
    wishes = allocation.wishes
    memory = min(got.memory, wishes.memory_limit or got.memory)
    percent = min(got.percent or 100, wishes.percent_limit or 100)
    return memory, percent if percent < 100 else None


def _worth(serve: ServeMps, memory: Bytes, percent: int | None) -> Limits:
    """The scale of design 9.1. A daemon's own default that is as low as the limit is the limit
    for every client; above it a client only has to drop its environment."""
    if serve.has_namespaces:
        return Limits("mpsNamespace", "mpsNamespace" if percent else "none")
    compute = "none"
    if percent:
        compute = _by_default(serve.compute_percent, percent)
    return Limits(_by_default(serve.memory_limit, memory), compute)


def _by_default(default: int | None, limit: int) -> str:
    return "mpsProcess" if default is not None and default <= limit else "mpsCooperative"


def _interval(
    device: TimeSlicedGpu, allocation: Allocation, sharers: Sequence[Holder]
) -> TimeSliceInterval | None:
    wish = allocation.wishes.interval
    if not sharers:
        if device.settable:
            return wish or device.interval
        if wish not in (None, TimeSliceInterval.DEFAULT):
            raise InvalidConfigError(
                [
                    f"interval: {wish.name} is asked for device {device.name}, but this node "
                    "cannot set time slices (`nvidia-smi compute-policy --set-timeslice` does not "
                    "work with its cards or driver); leave it out"
                ]
            )
        return None
    shares = [(other, other.held.share) for other in sharers]
    found = next((each.interval for _, each in shares if each and each.interval), None)
    if wish is not None and wish != (found or TimeSliceInterval.DEFAULT):
        holder = next(
            (other for other, each in shares if each and each.interval == found), sharers[0]
        )
        now = (found or TimeSliceInterval.DEFAULT).name
        raise DeviceConflictError(
            f"device {device.name}: interval {wish.name} is asked for, but claim {holder.claim} "
            f"has a turn on the card with interval {now}, and a card has one for all; ask for "
            f"{now} or for none, or wait for that claim"
        )
    return found


def not_for(key: str, device: str) -> str:
    """Why a field of a config stops the claim."""
    belongs = {
        "interval": "devices of type timeslice",
        "memoryLimit": "shares of a card (type mps)",
        "computePercentLimit": "shares of a card (type mps)",
        "computeMode": "whole cards",
    }
    return (
        f"{key}: is asked for device {device}, but only {belongs[key]} have it; leave it out, or "
        "name the requests that the config is for"
    )


def _refuse(which: str, capacity: str, found: int | None, wanted: str) -> NoReturn:
    got = "nothing" if found is None else str(found)
    raise ClaimError(
        f"{which}: consumedCapacity.{capacity} is {got}, wanted: {wanted}. Delete the pod, so "
        "that the claim is allocated again from what the node publishes now"
    )


def _full(
    device: SharedGpu, claim: AllocatedClaim, sharers: Sequence[Holder], what: str
) -> NoReturn:
    names = [str(other.claim) for other in sharers]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    raise DeviceHeldError(
        f"device {device.name} has no room for claim {claim}: {what} held by claims "
        f"{', '.join(names[:_NAMED])}{more}; `aliquot node status` on the node lists the holders"
    )
