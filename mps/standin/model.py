"""What a control daemon holds, and how it writes limits. Pure."""

import re
from dataclasses import dataclass, field

_MEMORY = re.compile(r"(\d*)(.?)")
ORDINALS = 32


@dataclass(slots=True)
class Client:
    """A process that computes under a server."""

    pid: int
    uid: int
    command: str
    namespace: str = "default"


@dataclass(slots=True)
class Server:
    """One nvidia-cuda-mps-server."""

    pid: int
    uid: int
    percent: float
    memory: dict[int, int]
    status: str = "ACTIVE"
    clients: dict[int, Client] = field(default_factory=dict)


@dataclass(slots=True)
class Limits:
    """Of a namespace of protocol 3; MiB and percent."""

    memory: int | None = None
    percent: int | None = None
    priority: int = 0


@dataclass(slots=True)
class Named:
    """A named server of protocol 3. Its process starts with the first client."""

    uid: int
    devices: str
    namespaces: dict[str, Limits] = field(default_factory=lambda: {"default": Limits()})


@dataclass(slots=True)
class Holding:
    """All of it."""

    version: int
    device: str
    uid: int
    percent: float = 100.0
    memory: dict[int, int] = field(default_factory=dict)  # ordinal to MiB
    priority: int = 0
    servers: dict[int, Server] = field(default_factory=dict)  # by pid
    named: dict[str, Named] = field(default_factory=dict)


def mib(text: str) -> int:
    """As the program reads sizes: digits, then G, anything else is M; so 1.5G is 1 MiB."""
    match = _MEMORY.match(text)
    if match is None or not match[1]:
        return 0
    return int(match[1]) * (1024 if match[2] in "gG" and match[2] else 1)


def shown(size: int) -> str:
    """As it prints them: whole G from 1 GiB on, what is less is cut off."""
    return f"{size // 1024}G" if size >= 1024 else f"{size}M"
