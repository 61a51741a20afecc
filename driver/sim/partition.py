"""The rules of partitions: what fits beside what, where a new one goes, and which ids it gets."""

from collections.abc import Iterable, Sequence

from driver.sim.boards import ComputeInstanceProfile, GpuInstanceProfile, Profile
from driver.sim.world import ComputeInstance, GpuInstance

_LIMITS = ("slices", "multiprocessors", "jpeg", "ofa")


def fits(
    board: Profile, present: Sequence[GpuInstance], wanted: GpuInstanceProfile, start: int
) -> bool:
    """True when ``wanted`` can be created at ``start`` beside the instances present.

    Three limits hold at once (MIG guide): memory slices must not overlap, the GPU slices of all
    must not exceed the card's, and engines of which there is one set (JPEG, OFA) go round once.
    """
    if start not in wanted.starts:
        return False
    if any(start < i.start + i.size and i.start < start + wanted.size for i in present):
        return False
    others = [profile for i in present if (profile := board.by_id(i.profile_id))]
    same = sum(1 for other in others if other.id == wanted.id)
    whole = max(board.gpu_instance_profiles, key=lambda p: p.slices)
    return same < wanted.instances and all(
        sum(getattr(p, limit) for p in (*others, wanted)) <= getattr(whole, limit)
        for limit in _LIMITS
    )


def remaining(board: Profile, present: Iterable[GpuInstance], wanted: GpuInstanceProfile) -> int:
    """How many more instances of a profile can be created, one after the other."""
    made = list(present)
    before = len(made)
    for start in wanted.starts:
        if fits(board, made, wanted, start):
            made.append(GpuInstance(-1, wanted.id, start, wanted.size))
    return len(made) - before


def choose(
    board: Profile, present: Sequence[GpuInstance], wanted: GpuInstanceProfile
) -> int | None:
    """Where the driver puts an instance that was asked for without a placement; None: nowhere.

    It takes the smallest free aligned block that has room, its lower end first, and the upper
    end of an empty card. This gives all sequences that the MIG guide shows, such as 19, 14, 5 at
    6, 4, 0 and 9, 19, 14, 19 at 4, 0, 2, 1.
    """
    free = [start for start in wanted.starts if fits(board, present, wanted, start)]
    if not free:
        return None
    blocks = {start: _free_block(board, present, start, wanted.size) for start in free}
    smallest = min(blocks.values())
    candidates = [start for start in free if blocks[start] == smallest]
    return max(candidates) if smallest == board.memory_slices else min(candidates)


def _free_block(board: Profile, present: Sequence[GpuInstance], start: int, size: int) -> int:
    """Size of the largest free aligned block around a placement (sizes are powers of two)."""
    block = size
    while block < board.memory_slices:
        low = start // (block * 2) * (block * 2)
        if any(i.start < low + block * 2 and low < i.start + i.size for i in present):
            break
        block *= 2
    return block


def instance_id(board: Profile, start: int, size: int) -> int:
    """The id of a GPU instance: the number of its placement in a heap, as seen on real cards."""
    return board.memory_slices // size - 1 + start // size


def compute_starts(outer: GpuInstanceProfile, inner: ComputeInstanceProfile) -> list[int]:
    """Possible placements of a compute instance, in compute slices of its GPU instance."""
    return [inner.slices * n for n in range(outer.slices // inner.slices)]


def compute_fits(present: Iterable[ComputeInstance], start: int, size: int) -> bool:
    """True when no compute instance has any of these slices."""
    return not any(start < c.start + c.size and c.start < start + size for c in present)


def compute_multiprocessors(
    board: Profile, outer: GpuInstanceProfile, inner: ComputeInstanceProfile
) -> int:
    """All of its GPU instance's for the largest profile, else as many as 1g has for each slice."""
    if inner.slices == outer.slices:
        return outer.multiprocessors
    single = board.by_enum(0)
    return inner.slices * single.multiprocessors if single else 0
