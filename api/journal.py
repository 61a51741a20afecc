"""The journal's record of a claim, as JSON. Version 1.

Plain values only, so that the driver writes it and a command can read it without the driver. An
envelope with a digest around it is the writer's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api.journal_fields import Fields, JournalError, arguments, decode, encode
from api.journal_shares import (
    CONSUMED,
    LIMIT_POD,
    NAMESPACE,
    SERVE,
    SHARE,
    STEP_FORMS,
    WISHES,
    JournalConsumed,
    JournalShare,
    JournalWishes,
)
from api.reading import join

__all__ = [
    "JournalAllocation",
    "JournalConsumed",
    "JournalError",
    "JournalPartition",
    "JournalRecord",
    "JournalShare",
    "JournalStep",
    "JournalWishes",
    "decode_record",
    "encode_record",
]

VERSION = 1
STATES = ("PrepareStarted", "PrepareCompleted")
DEVICE_TYPES = ("gpu", "mig", "mps", "timeslice")
COMPUTE_MODES = ("Default", "ExclusiveProcess", "Prohibited")
STEPS = (
    "setComputeMode",
    "ensureMigMode",
    "createMigDevice",
    "serveMps",
    "mpsNamespace",
    "limitPod",
    "setTimeSlice",
)


@dataclass(frozen=True, slots=True)
class JournalPartition:
    """A partition by position: its profile, and where it lies in memory slices."""

    profile: str  # "1g.10gb"
    start: int  # >= 0
    size: int  # >= 1


@dataclass(frozen=True, slots=True)
class JournalAllocation:
    """One allocation and what it holds."""

    position: int  # >= 0, in status.allocation.devices.results
    request: str
    pool: str
    device: str
    gpu: str  # the card's UUID
    type: str  # of DEVICE_TYPES
    share_id: str | None = None
    admin_access: bool = False
    compute_mode: str | None = None  # of COMPUTE_MODES
    partition: JournalPartition | None = None  # of type "mig"
    consumed: JournalConsumed | None = None
    wishes: JournalWishes | None = None
    share: JournalShare | None = None  # of types "mps" and "timeslice"


@dataclass(frozen=True, slots=True)
class JournalStep:
    """One change to the node. Which of the other fields it has, ``do`` says."""

    do: str  # of STEPS
    gpu: str
    mode: str | None = None  # setComputeMode: of COMPUTE_MODES
    on: bool = False  # ensureMigMode
    toggle: bool = False  # ensureMigMode: may change it
    partition: JournalPartition | None = None  # createMigDevice
    profile_id: int = 0  # createMigDevice: the driver's id of the profile
    memory_limit: int | None = None  # serveMps, mpsNamespace, limitPod: bytes
    percent_limit: int | None = None  # serveMps, mpsNamespace
    protocol: int = 0  # serveMps
    name: str = ""  # mpsNamespace
    pod: str = ""  # limitPod: its UID
    interval: str | None = None  # setTimeSlice: of INTERVALS


@dataclass(frozen=True, slots=True)
class JournalRecord:
    uid: str
    namespace: str
    name: str
    state: str  # of STATES
    boot_id: str
    allocations: tuple[JournalAllocation, ...]
    steps: tuple[JournalStep, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)  # fields of a later version, in place


def encode_record(record: JournalRecord) -> dict[str, Any]:
    """The record as JSON data, its unknown fields where they were found."""
    merged: dict[str, Any] = _overlay(record.unknown, _known(record))
    return merged


def decode_record(raw: object) -> JournalRecord:
    """Read what ``encode_record`` wrote, this version or a later one that only added fields.

    Raises:
        JournalError: a field is missing, has the wrong type or a value this version lacks.
    """
    top = Fields("", raw)
    version = top.integer("version")
    if version != VERSION:
        raise JournalError(f"version: got {version}, this program reads {VERSION}")
    claim = Fields("claim", top.value("claim"))
    record = JournalRecord(
        uid=claim.text("uid"),
        namespace=claim.text("namespace"),
        name=claim.text("name"),
        state=top.choice("state", STATES),
        boot_id=top.text("bootId"),
        allocations=tuple(_allocation(item) for item in top.items("allocations")),
        steps=tuple(_step(item) for item in top.items("steps")),
    )
    return JournalRecord(
        **{name: getattr(record, name) for name in record.__slots__ if name != "unknown"},
        unknown=_without(top.raw, _known(record)),
    )


def _known(record: JournalRecord) -> dict[str, Any]:
    return {
        "version": VERSION,
        "claim": {"uid": record.uid, "namespace": record.namespace, "name": record.name},
        "state": record.state,
        "bootId": record.boot_id,
        "allocations": [_encode_allocation(each) for each in record.allocations],
        "steps": [_encode_step(step) for step in record.steps],
    }


def _encode_allocation(allocation: JournalAllocation) -> dict[str, Any]:
    fields = {
        "position": allocation.position,
        "request": allocation.request,
        "pool": allocation.pool,
        "device": allocation.device,
        "gpu": allocation.gpu,
        "type": allocation.type,
    }
    optional = {
        "shareID": allocation.share_id,
        "adminAccess": allocation.admin_access or None,
        "computeMode": allocation.compute_mode,
        "partition": _encode_partition(allocation.partition),
        "consumed": encode(allocation.consumed, CONSUMED),
        "wishes": encode(allocation.wishes, WISHES),
        "share": encode(allocation.share, SHARE),
    }
    return fields | {key: value for key, value in optional.items() if value is not None}


def _encode_step(step: JournalStep) -> dict[str, Any]:
    more: dict[str, dict[str, Any]] = {
        "setComputeMode": {"mode": step.mode},
        "ensureMigMode": {"on": step.on, "toggle": step.toggle},
        "createMigDevice": {
            "partition": _encode_partition(step.partition),
            "profileID": step.profile_id,
        },
        "serveMps": encode(step, SERVE) or {},
        "mpsNamespace": encode(step, NAMESPACE) or {},
        "limitPod": encode(step, LIMIT_POD) or {},
        "setTimeSlice": {"interval": step.interval},
    }
    return {"do": step.do, "gpu": step.gpu} | more[step.do]


def _encode_partition(partition: JournalPartition | None) -> dict[str, Any] | None:
    if partition is None:
        return None
    return {"profile": partition.profile, "start": partition.start, "size": partition.size}


def _allocation(fields: Fields) -> JournalAllocation:
    consumed, wishes, share = (
        decode(fields, "consumed", CONSUMED),
        decode(fields, "wishes", WISHES),
        decode(fields, "share", SHARE),
    )
    return JournalAllocation(
        position=fields.integer("position"),
        request=fields.text("request"),
        pool=fields.text("pool"),
        device=fields.text("device"),
        gpu=fields.text("gpu"),
        type=fields.choice("type", DEVICE_TYPES),
        share_id=fields.text("shareID") if fields.has("shareID") else None,
        admin_access=fields.flag("adminAccess"),
        compute_mode=fields.choice("computeMode", COMPUTE_MODES)
        if fields.has("computeMode")
        else None,
        partition=_partition(fields) if fields.has("partition") else None,
        consumed=None if consumed is None else JournalConsumed(**consumed),
        wishes=None if wishes is None else JournalWishes(**wishes),
        share=None if share is None else JournalShare(**share),
    )


def _step(fields: Fields) -> JournalStep:
    do, gpu = fields.choice("do", STEPS), fields.text("gpu")
    if do == "setComputeMode":
        return JournalStep(do, gpu, mode=fields.choice("mode", COMPUTE_MODES))
    if do == "ensureMigMode":
        return JournalStep(do, gpu, on=fields.flag("on"), toggle=fields.flag("toggle"))
    if do in STEP_FORMS:
        return JournalStep(do, gpu, **arguments(fields, STEP_FORMS[do]))
    return JournalStep(
        do, gpu, partition=_partition(fields), profile_id=fields.integer("profileID")
    )


def _partition(fields: Fields) -> JournalPartition:
    inner = Fields(join(fields.path, "partition"), fields.value("partition"))
    if (size := inner.integer("size")) < 1:
        raise inner.wrong("size", "1 or more")
    return JournalPartition(inner.text("profile"), inner.integer("start"), size)


def _without(raw: Any, known: Any) -> Any:
    """What of ``raw`` is not in ``known``, at the same place; empty where nothing is left."""
    if isinstance(raw, dict) and isinstance(known, dict):
        rest = {
            key: _without(value, known[key]) if key in known else value
            for key, value in raw.items()
        }
        return {key: value for key, value in rest.items() if key not in known or value}
    if isinstance(raw, list) and isinstance(known, list):
        rest_items = [_without(a, b) for a, b in zip(raw, known, strict=True)]
        return rest_items if any(rest_items) else []
    return {}


def _overlay(unknown: Any, known: Any) -> Any:
    """``known`` with ``unknown`` put back; the inverse of ``_without``."""
    if isinstance(unknown, Mapping) and isinstance(known, dict):
        kept = {key: value for key, value in unknown.items() if key not in known}
        return {
            key: _overlay(unknown[key], value) if key in unknown else value
            for key, value in known.items()
        } | kept
    if isinstance(unknown, list) and isinstance(known, list) and len(unknown) == len(known):
        return [_overlay(a, b) for a, b in zip(unknown, known, strict=True)]
    return known
