"""The journal's JSON of shares: what was consumed, configured and done."""

from collections.abc import Mapping
from dataclasses import dataclass

from api.journal_fields import Fields, Form
from api.policy_sharing import INTERVALS
from api.v1alpha1 import ENFORCEMENT


@dataclass(frozen=True, slots=True)
class JournalConsumed:
    """``consumedCapacity`` of a share, as it was allocated."""

    memory: int | None = None  # bytes
    compute_percent: int | None = None
    shares: int | None = None


@dataclass(frozen=True, slots=True)
class JournalWishes:
    """What was configured for a share."""

    memory_limit: int | None = None  # bytes
    percent_limit: int | None = None
    require: str | None = None  # of ENFORCEMENT
    interval: str | None = None  # of INTERVALS


@dataclass(frozen=True, slots=True)
class JournalShare:
    """What an allocation has of a shared card, and what limits it."""

    memory: int  # bytes
    compute_percent: int
    memory_by: str  # of ENFORCEMENT
    compute_by: str  # of ENFORCEMENT
    memory_limit: int | None = None  # bytes, for each process
    percent_limit: int | None = None
    multi_user: bool = False
    namespace: str | None = None
    interval: str | None = None  # of INTERVALS


def _level(fields: Fields, key: str) -> str:
    return fields.choice(key, ENFORCEMENT)


def _interval(fields: Fields, key: str) -> str:
    return fields.choice(key, INTERVALS)


CONSUMED = {
    "memory": Form("memory", Fields.integer),
    "compute_percent": Form("computePercent", Fields.integer),
    "shares": Form("shares", Fields.integer),
}
_LIMITS = {
    "memory_limit": Form("memoryLimit", Fields.integer),
    "percent_limit": Form("percentLimit", Fields.integer),
}
WISHES = _LIMITS | {
    "require": Form("require", _level),
    "interval": Form("interval", _interval),
}
SHARE = _LIMITS | {
    "memory": Form("memory", Fields.integer, needed=True),
    "compute_percent": Form("computePercent", Fields.integer, needed=True),
    "memory_by": Form("memoryBy", _level, needed=True),
    "compute_by": Form("computeBy", _level, needed=True),
    "multi_user": Form("multiUser", Fields.flag),
    "namespace": Form("namespace", Fields.text),
    "interval": Form("interval", _interval),
}
SERVE = _LIMITS | {"protocol": Form("protocol", Fields.integer, needed=True)}
NAMESPACE = _LIMITS | {"name": Form("name", Fields.text, needed=True)}
LIMIT_POD = {
    "pod": Form("pod", Fields.text, needed=True),
    "memory_limit": Form("memoryLimit", Fields.integer, needed=True),
}
STEP_FORMS: Mapping[str, Mapping[str, Form]] = {
    "serveMps": SERVE,
    "mpsNamespace": NAMESPACE,
    "limitPod": LIMIT_POD,
    "setTimeSlice": {"interval": Form("interval", _interval, needed=True)},
}
