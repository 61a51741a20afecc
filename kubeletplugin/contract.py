"""What a DRA driver provides to be served to the kubelet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

Object: TypeAlias = dict[str, Any]  # a Kubernetes object as raw JSON


class ClaimRefusedError(Exception):
    """Raise it (or a subclass) to answer one claim with an error: its text reaches the pod."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """What the kubelet says of a claim: a name and the UID it must have."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}:{self.uid}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device of a claim (``Device`` of ``dra/v1/api.proto``)."""

    requests: tuple[str, ...]  # base names, without the sub-request
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...] = ()
    share_id: str | None = None  # only DRA v1 carries it


class Driver(Protocol):
    """Both calls are idempotent; each runs as a task of its own that is never cancelled.

    Calls for one claim never overlap. Any exception answers that claim alone with its text;
    exceptions other than ``expected_errors`` are reported as internal errors.
    """

    expected_errors: tuple[type[Exception], ...]

    async def prepare(self, claim: Object) -> Sequence[PreparedDevice]:
        """``claim`` is the raw ResourceClaim, allocated, with the UID the kubelet named."""
        ...

    async def unprepare(self, claim: ClaimRef) -> None:
        """The claim object may be gone. Unknown claims succeed."""
        ...

    async def recall(self, claim: ClaimRef) -> Sequence[PreparedDevice] | None:
        """What an earlier ``prepare`` answered, or None. Asked while the API server is away."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """Health of one device, for ``pod.status…allocatedResourcesStatus`` (KEP-4680)."""

    pool: str
    device: str
    healthy: bool | None  # None: unknown
    message: str = ""


@dataclass(frozen=True, slots=True)
class DesiredSlice:
    """One ResourceSlice to publish. ``key`` fixes its name: the scheduler goes by names."""

    key: str  # DNS label, unique in the pool, e.g. "00-cards"
    devices: tuple[Mapping[str, Any], ...] = ()
    shared_counters: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredPool:
    """All slices of one node-local pool; empty ``slices`` publishes one empty slice."""

    name: str
    slices: tuple[DesiredSlice, ...] = field(default=())
