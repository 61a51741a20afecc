"""The mixes of claims that orders are measured with, for the two geometries of cards."""

from collections.abc import Mapping

from driver.sim.boards import Profile

PRODUCTS = ("h100-80gb", "a100-40gb", "b200", "a30")
CARDS = 8
LOADS = (0.5, 0.6, 0.7)
SEARCHED_LOAD = 0.6
MIXES = ("small", "mid", "llm", "whole-heavy")

# NVML_GPU_INSTANCE_PROFILE_* → share of the claims. 0: 1g, 1: 2g, 2: 3g, 3: 4g, 4: 7g, 9: 1g with
# twice the memory. A card with four slices has 1g, 2g and 4g.
_SEVEN: Mapping[str, Mapping[int, float]] = {
    "small": {0: 60, 1: 20, 2: 15, 4: 5},
    "mid": {0: 40, 1: 20, 2: 25, 3: 15},
    "llm": {0: 50, 9: 20, 2: 20, 3: 10},
    "whole-heavy": {0: 50, 3: 30, 4: 20},
}
_FOUR: Mapping[str, Mapping[int, float]] = {
    "small": {0: 60, 1: 30, 3: 10},
    "mid": {0: 40, 1: 40, 3: 20},
    "llm": {0: 25, 1: 65, 3: 10},
    "whole-heavy": {0: 70, 3: 30},
}


def mixes(board: Profile) -> Mapping[str, Mapping[str, float]]:
    """Name of the mix → profile → share."""
    by_enum = {each.profile: each.name for each in board.gpu_instance_profiles}
    chosen = _SEVEN if board.memory_slices == 8 else _FOUR
    return {
        name: {by_enum[enum]: share for enum, share in shares.items()}
        for name, shares in chosen.items()
    }
