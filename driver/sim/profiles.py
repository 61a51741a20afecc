"""The models of card that can be simulated, by the name used on the command line."""

from collections.abc import Mapping
from types import MappingProxyType

from driver.sim.boards import BOARDS, ComputeInstanceProfile, GpuInstanceProfile, Links, Profile

__all__ = [
    "MAX_CARDS",
    "PROFILES",
    "ComputeInstanceProfile",
    "GpuInstanceProfile",
    "Links",
    "Profile",
    "known",
    "parse_simulate",
]

PROFILES: Mapping[str, Profile] = MappingProxyType({board.key: board for board in BOARDS})

MAX_CARDS = 512


def known() -> str:
    """The names of all profiles, for error texts."""
    return ", ".join(PROFILES)


def parse_simulate(text: str) -> tuple[str, int]:
    """``"h100-80gb:8"`` → ``("h100-80gb", 8)``; without a count, one card.

    Raises:
        ValueError: unknown profile, or a count that is not 1 to 512.
    """
    name, colon, number = text.strip().partition(":")
    if name not in PROFILES:
        raise ValueError(f"simulated hardware {text!r}: no profile {name!r}; known: {known()}")
    if not colon:
        return name, 1
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= MAX_CARDS):
        raise ValueError(
            f"simulated hardware {text!r}: the count must be 1 to {MAX_CARDS}, found {number!r}; "
            f"write it as PROFILE:COUNT, such as {name}:8"
        )
    return name, int(number)
