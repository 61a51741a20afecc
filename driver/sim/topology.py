"""Where each simulated card sits: identity, PCI address, NUMA node and what its NVLinks reach.

Pure functions of (profile, count, seed), so every process sees the same node without storing it.
"""

import hashlib
import uuid
from dataclasses import dataclass, field
from functools import lru_cache

from driver.sim.boards import Links, Profile

_CARDS_PER_DOMAIN = 16  # eight PCIe roots with two cards each


@dataclass(frozen=True, slots=True)
class Pci:
    """A PCI function 0. The address is as the kernel spells it: ``0000:1b:00.0``."""

    domain: int
    bus: int
    device: int = 0
    address: str = field(init=False)
    nvml: bytes = field(init=False)  # NVML's spelling: ``00000000:1B:00.0``
    legacy: bytes = field(init=False)  # and its older one: ``0000:1B:00.0``

    def __post_init__(self) -> None:
        address = f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.0"
        object.__setattr__(self, "address", address)
        object.__setattr__(self, "legacy", address.upper().encode())
        object.__setattr__(self, "nvml", b"0000" + self.legacy)


@dataclass(frozen=True, slots=True)
class Card:
    """The constant facts of one simulated card."""

    index: int
    uuid: str
    pci: Pci
    numa_node: int
    path: tuple[str, ...]  # below /sys/devices, root first, the card last
    peer: int | None  # index of the card at the other end of a bridge


def cards(profile: Profile, count: int, seed: int) -> tuple[Card, ...]:
    """All cards of a node, in NVML's order (by PCI address)."""
    uuids = _uuids(count, seed)
    pairs = (count + 1) // 2
    made = []
    for index in range(count):
        pair, second = divmod(index, 2)
        domain, within = divmod(index, _CARDS_PER_DOMAIN)
        root = 0x18 + 0x20 * (within // 2)
        pci = Pci(domain, root + 3 + second)
        made.append(
            Card(
                index=index,
                uuid=uuids[index],
                pci=pci,
                numa_node=0 if pair < (pairs + 1) // 2 else 1,
                path=(
                    f"pci{domain:04x}:{root:02x}",
                    Pci(domain, root, 1).address,  # root port
                    Pci(domain, root + 1).address,  # PCIe switch, upstream
                    Pci(domain, root + 2, second).address,  # and its downstream port
                    pci.address,
                ),
                peer=_peer(profile, index, count),
            )
        )
    return tuple(made)


@lru_cache(maxsize=64)
def switch(links: Links, link: int) -> Pci:
    """The NVSwitch at the other end of a link of a switched card."""
    return Pci(0, 0xC6 + link % links.switches)  # buses that no card has


def fabric_uuid(profile: Profile) -> bytes:
    """Cluster UUID of the multi-node fabric; nodes of one profile are in one fabric."""
    return hashlib.sha256(f"fabric/{profile.key}".encode()).digest()[:16]


def _peer(profile: Profile, index: int, count: int) -> int | None:
    if profile.links is None or profile.links.switched:
        return None
    other = index ^ 1
    return other if other < count else None


def _uuids(count: int, seed: int) -> list[str]:
    """Random-looking UUIDs (version 4) whose first eight digits are distinct within the node."""
    made: dict[str, str] = {}
    for index in range(count):
        salt = 0
        while True:
            digest = hashlib.sha256(f"gpu/{seed}/{index}/{salt}".encode()).digest()
            text = str(uuid.UUID(bytes=digest[:16], version=4))
            if made.setdefault(text[:8], text) is text:
                break
            salt += 1
    return [f"GPU-{text}" for text in made.values()]
