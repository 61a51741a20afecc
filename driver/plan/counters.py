"""What devices take of a card (KEP-4815), so that whole card and partitions exclude each other.

One counter a memory slice says where a partition lies, one counter a kind of resource how much
there is of it. Both are needed: seven compute slices lie over eight memory slices.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import assert_never

from driver.model.devices import Device, MigPartition, MpsGpu, TimeSlicedGpu, WholeGpu
from driver.model.gpu import Engines, Gpu, MigProfile
from driver.model.units import Bytes, binary_quantity, decimal_quantity

_MEMORY = "memory"
# Sets of which the hardware has few enough to forbid combinations that would fit otherwise.
_SCARCE = ("jpeg-engines", "ofa-engines")


def consumed(device: Device, gpu_totals: Mapping[str, int]) -> Mapping[str, int]:
    """What a device takes of its card by counter; memory in bytes.

    A whole card takes all there is, and so does a shared one, once with its first share
    (kubernetes#134103); an adopted partition nothing: what it has is not in the
    totals to begin with.
    """
    match device:
        case WholeGpu() | MpsGpu() | TimeSlicedGpu():
            return gpu_totals
        case MigPartition(adopted=True):
            return {}
        case MigPartition(profile=profile, start=start):
            return _of_profile(profile, start, gpu_totals)
        case _:
            assert_never(device)


def totals(gpu: Gpu, adopted: Iterable[MigPartition] = ()) -> Mapping[str, int]:
    """What the card has to give by counter, without what adopted partitions have.

    Of each kind as much as the profile (or the card as a whole) that has most of it, which is
    more than any partition needs and no less than partitions together can have; a kind for which
    that does not hold is left out (``uncovered``). Zero: adopted partitions have all of it.
    """
    whole = {_MEMORY: int(gpu.memory)} | _counts(gpu.multiprocessors, gpu.engines)
    found = dict(whole)
    for profile in gpu.mig_profiles:
        for name, count in _amounts(profile).items():
            found[name] = max(found.get(name, 0), count)
    for name in uncovered(gpu):
        del found[name]
    for each in adopted:
        for name, count in _amounts(each.profile).items():
            if name in found:
                found[name] = max(found[name] - count, 0)
    return found | {f"memory-slice-{n}": 1 for n in range(memory_slices(gpu))}


def memory_slices(gpu: Gpu) -> int:
    """How many memory slices the placements of the card cover; 0 where it has none."""
    return max((max(p.starts) + p.size for p in gpu.mig_profiles if p.starts), default=0)


def uncovered(gpu: Gpu) -> tuple[str, ...]:
    """Kinds of which some combination of partitions that the hardware allows has more than the
    totals: counting them would refuse what fits. None is known; drivers differ, so it is checked.
    """
    names = {name for profile in gpu.mig_profiles for name in _amounts(profile)}
    found = {_MEMORY: int(gpu.memory)} | _counts(gpu.multiprocessors, gpu.engines)
    for profile in gpu.mig_profiles:
        for name, count in _amounts(profile).items():
            found[name] = max(found.get(name, 0), count)
    return tuple(
        sorted(
            name
            for name in names - set(_SCARCE)
            if most(gpu.mig_profiles, name) > found.get(name, 0)
        )
    )


@lru_cache(maxsize=256)
def most(profiles: tuple[MigProfile, ...], name: str) -> int:
    """The most of one kind that partitions of one card can have together.

    Memory slices must not overlap, a profile has at most its number of instances, and of JPEG
    and OFA engines there is no more than the profile with most of them has.
    """
    scarce = [max((_amounts(p).get(kind, 0) for p in profiles), default=0) for kind in _SCARCE]
    end = max((max(p.starts) + p.size for p in profiles if p.starts), default=0)
    limits = tuple(p.instances for p in profiles)

    @cache
    def best(at: int, left: tuple[int, ...], jpeg: int, ofa: int) -> int:
        if at >= end:
            return 0
        found = best(at + 1, left, jpeg, ofa)
        for i, profile in enumerate(profiles):
            has = _amounts(profile)
            jpeg_left, ofa_left = (
                jpeg - has.get(_SCARCE[0], 0),
                ofa - has.get(_SCARCE[1], 0),
            )
            if at in profile.starts and left[i] and jpeg_left >= 0 and ofa_left >= 0:
                rest = (*left[:i], left[i] - 1, *left[i + 1 :])
                beyond = best(at + profile.size, rest, jpeg_left, ofa_left)
                found = max(found, has.get(name, 0) + beyond)
        return found

    return best(0, limits, *scarce)


def quantities(counts: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """Counters as the API has them."""
    return {
        name: {
            "value": binary_quantity(Bytes(count)) if name == _MEMORY else decimal_quantity(count)
        }
        for name, count in counts.items()
        if count
    }


def fits(need: Mapping[str, int], there: Mapping[str, int]) -> bool:
    """Whether a device could ever be allocated."""
    return all(count <= there.get(name, 0) for name, count in need.items())


def adopted_of(devices: Sequence[Device], gpu: Gpu) -> tuple[MigPartition, ...]:
    """The adopted partitions of a card among ``devices``."""
    return tuple(
        each
        for each in devices
        if isinstance(each, MigPartition) and each.adopted and each.gpu.uuid == gpu.uuid
    )


def _of_profile(profile: MigProfile, start: int, there: Mapping[str, int]) -> dict[str, int]:
    """Kinds that the totals leave out are not counted."""
    amounts = {name: n for name, n in _amounts(profile).items() if name in there}
    return amounts | {f"memory-slice-{n}": 1 for n in range(start, start + profile.size)}


@lru_cache(maxsize=1024)
def _amounts(profile: MigProfile) -> Mapping[str, int]:
    counts = _counts(profile.multiprocessors, profile.engines)
    found = {_MEMORY: int(profile.memory)} | counts
    return {name: count for name, count in found.items() if count}


def _counts(multiprocessors: int | None, engines: Engines) -> dict[str, int]:
    found = {
        "multiprocessors": multiprocessors,
        "copy-engines": engines.copy,
        "decoders": engines.decoders,
        "encoders": engines.encoders,
        "jpeg-engines": engines.jpeg,
        "ofa-engines": engines.ofa,
    }
    return {name: count for name, count in found.items() if count}
