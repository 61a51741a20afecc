"""What driver and supervisor say to each other. Pure values.

One connection a call: the client sends one line of JSON, ``{"call": …, "arguments": {…}}``, and
gets one back, ``{"result": …}`` or ``{"error": {"kind": …, "text": …}}``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
LARGEST_LINE = 1 << 20  # bytes; 100 cards with 48 namespaces each are 600 kB

_GPU = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAMESPACE = re.compile(r"[a-z0-9_]{1,64}")  # docs.nvidia.com/deploy/mps, "MPS v3 Interface"
_RESERVED = "default"  # the namespace that every server has


class MpsError(Exception):
    """A call to the supervisor did not do what was asked."""


class MpsUnreachableError(MpsError):
    """The supervisor did not answer. What was asked may still be done: calls can be repeated."""


class MpsRefusedError(MpsError):
    """The supervisor answered, and the text says why it did not do what was asked."""


@dataclass(frozen=True, slots=True)
class CardSpec:
    """The control daemon of one card and its defaults, which every server of it starts with."""

    gpu: str  # UUID
    memory_limit: int | None  # bytes for each client process, whole MiB; None: unset
    compute_percent: int | None  # 1 to 100, SMs of each client process; None: unset
    protocol: int = 2  # 2, or 3 (R615 and newer: namespaces)

    def __post_init__(self) -> None:
        check_gpu(self.gpu)
        check_limits(self.memory_limit, self.compute_percent)
        if self.protocol not in (2, 3):
            raise MpsRefusedError(f"MPS protocol {self.protocol!r} of {self.gpu}; wanted 2 or 3")


@dataclass(frozen=True, slots=True)
class Namespace:
    """Limits of one claim under protocol 3; what is unset is unlimited."""

    name: str  # 1 to 64 of a-z, 0-9 and _
    memory_limit: int | None
    compute_percent: int | None

    def __post_init__(self) -> None:
        check_namespace(self.name)
        check_limits(self.memory_limit, self.compute_percent)


@dataclass(frozen=True, slots=True)
class CardState:
    """How a card's control daemon is. ``failure`` may outlast what it tells of for some seconds,
    so that whoever polls sees it; ``running`` is true by then."""

    spec: CardSpec
    pipe_directory: Path
    shm: Path | None  # becomes the clients' /dev/shm; None: they share the daemon's own
    pid: int | None
    started: float | None  # of this daemon, seconds since 1970
    running: bool
    failure: str | None
    restarts: int  # daemons that died since the card was first served


@dataclass(frozen=True, slots=True)
class SupervisorInfo:
    """The supervisor itself and the control program it found."""

    pid: int
    started: float  # seconds since 1970
    program: str
    version: str | None  # first number of the driver's version, "550"; None: unknown
    protocols: tuple[int, ...]  # of 2 and 3, those it can serve; empty: see failure
    multi_user: bool  # clients of several users at once; else they wait for each other
    failure: str | None = None  # why it cannot start daemons


def check_gpu(gpu: str) -> str:
    """Return a UUID as NVML gives it. Raises MpsRefusedError for anything else."""
    if not isinstance(gpu, str) or not _GPU.fullmatch(gpu):
        raise MpsRefusedError(f"{gpu!r} is not the UUID of a GPU, as in GPU-<8>-<4>-<4>-<4>-<12>")
    return gpu


def check_namespace(name: str) -> str:
    """Return a name that the control program takes. Raises MpsRefusedError for any other."""
    if not isinstance(name, str) or not _NAMESPACE.fullmatch(name) or name == _RESERVED:
        raise MpsRefusedError(
            f"{name!r} cannot name a namespace: wanted 1 to 64 of a-z, 0-9 and _, not {_RESERVED}"
        )
    return name


def check_limits(memory_limit: int | None, compute_percent: int | None) -> None:
    """Raises MpsRefusedError for a limit that the control program would store as another."""
    if memory_limit is not None and not _whole_mib(memory_limit):
        raise MpsRefusedError(
            f"memory limit of {memory_limit!r} bytes; wanted whole MiB from 1 on: the control "
            "program rounds what is less without a word"
        )
    if compute_percent is not None and not (_integer(compute_percent) and compute_percent <= 100):
        raise MpsRefusedError(f"compute limit of {compute_percent!r} %; wanted 1 to 100")


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _whole_mib(value: int) -> bool:
    return _integer(value) and value % MIB == 0


def as_data(value: CardSpec | Namespace | CardState | SupervisorInfo) -> dict[str, Any]:
    """A value as JSON holds it."""
    data = asdict(value)
    return {key: str(one) if isinstance(one, Path) else one for key, one in data.items()}


def spec_of(data: Mapping[str, Any]) -> CardSpec:
    """Raises MpsRefusedError for a value out of range, KeyError for one that is missing."""
    return CardSpec(data["gpu"], data["memory_limit"], data["compute_percent"], data["protocol"])


def namespace_of(data: Mapping[str, Any]) -> Namespace:
    """As ``spec_of``."""
    return Namespace(data["name"], data["memory_limit"], data["compute_percent"])


def state_of(data: Mapping[str, Any]) -> CardState:
    """As ``spec_of``."""
    shm = data["shm"]
    return CardState(
        spec=spec_of(data["spec"]),
        pipe_directory=Path(data["pipe_directory"]),
        shm=None if shm is None else Path(shm),
        **{key: data[key] for key in ("pid", "started", "running", "failure", "restarts")},
    )


def info_of(data: Mapping[str, Any]) -> SupervisorInfo:
    """Fields of newer supervisors are passed over. Raises KeyError for one that is missing."""
    return SupervisorInfo(
        protocols=tuple(data["protocols"]),
        failure=data.get("failure"),
        **{key: data[key] for key in ("pid", "started", "program", "version", "multi_user")},
    )


def line(message: Mapping[str, Any]) -> bytes:
    """One message, ready to be sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def message_of(data: bytes) -> dict[str, Any]:
    """The message in a line. Raises ValueError for anything that is not one."""
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004 - it is the text that is wrong
            f"a message is an object, this is a {type(found).__name__}"
        )
    return found
