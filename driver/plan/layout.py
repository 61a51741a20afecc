"""Which kinds of devices a cluster can have side by side on one card (design 6.4).

What real schedulers did with each layout decides: a shared device that consumes counters is right
from Kubernetes 1.36.3 on, before it whole cards were granted beside shares.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from api.policy import SHARED_MODES
from driver.model.devices import Device, MigPartition, MpsGpu, TimeSlicedGpu, WholeGpu
from driver.model.ids import DeviceName, GpuUuid

TAINTS, COUNTERS, SHARING = "taints", "counters", "sharing"  # of kubeletplugin.probe
# Kubernetes 1.34 wants counters in the ResourceSlice of their devices, and a shared device alone
# in one.
COUNTERS_BESIDE_DEVICES = "countersBesideDevices"
# Kubernetes 1.34 and 1.35 go through the ResourceSlices of a pool in any order.
UNSORTED = "unsortedResourceSlices"
COUNTED_SHARES = "countedShares"  # shared devices may consume counters

# What a current cluster with all gates on has.
EVERYTHING: Set[str] = frozenset({TAINTS, COUNTERS, SHARING, COUNTED_SHARES})


def cluster_features(kept: Set[str], minor: int, patch: int) -> frozenset[str]:
    """What the cluster can do: the optional fields it ``kept`` of a probe, and what follows from
    its version, Kubernetes 1.``minor``.``patch``."""
    found = set(kept)
    if minor <= 34:
        found.add(COUNTERS_BESIDE_DEVICES)
    if minor <= 35:
        found.add(UNSORTED)
    if (minor, patch) >= (36, 3):
        found.add(COUNTED_SHARES)
    return frozenset(found)


def side_by_side(features: Set[str]) -> bool:
    """Whether shared devices and others of one card exclude each other by counters."""
    return features >= {COUNTERS, SHARING, COUNTED_SHARES}


def offered_modes(modes: Iterable[str], features: Set[str], *, mps: bool) -> frozenset[str]:
    """Of the ``modes`` that the policy allows on a card those that are offered.

    ``mps``: the node has an MPS supervisor. Where shared devices cannot stand beside others, the
    first mode decides: a shared one is the only device of its card, else none is shared.
    """
    shared = SHARING in features
    able = [mode for mode in modes if mode not in SHARED_MODES or shared]
    able = [mode for mode in able if mode != "mps" or mps]
    if side_by_side(features) or not able:
        return frozenset(able)
    if able[0] in SHARED_MODES:
        return frozenset(able[:1])
    return frozenset(mode for mode in able if mode not in SHARED_MODES)


def is_kept_out(device: Device, held: Iterable[Device], features: Set[str]) -> bool:
    """Whether a device must not be offered because of what is ``held`` of its card: a card changes
    from one shape to another only when it is free, unless counters see to it."""
    others = [each for each in held if each.gpu.uuid == device.gpu.uuid]
    if not side_by_side(features) and any(_are_apart(device, other) for other in others):
        return True
    if COUNTERS in features or not isinstance(device, WholeGpu):
        return False
    return any(isinstance(other, MigPartition) for other in others)


def keep_shared(
    devices: Iterable[Device], before: Mapping[DeviceName, Device], busy: Set[GpuUuid]
) -> tuple[Device, ...]:
    """``devices`` with the shared ones of ``busy`` cards as they were ``before``: their sizes and
    limits hold for claims that have them, and a changed policy is for those that come when the
    card was free (KEP-5075: no policy changes while allocations exist)."""
    return tuple(_kept(each, before.get(each.name), busy) for each in devices)


def _kept(device: Device, earlier: Device | None, busy: Set[GpuUuid]) -> Device:
    if device.gpu.uuid in busy and isinstance(earlier, MpsGpu | TimeSlicedGpu):
        return replace(earlier, gpu=device.gpu, toggle=device.toggle)
    return device


def is_shared(device: Device) -> bool:
    return isinstance(device, MpsGpu | TimeSlicedGpu)


def _are_apart(device: Device, other: Device) -> bool:
    return device.name != other.name and (is_shared(device) or is_shared(other))
