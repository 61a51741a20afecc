"""When the content of two ResourceSlices is the same for Kubernetes."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from kubeletplugin.contract import Object
from kubeletplugin.quantities import quantity

TIME_TOLERANCE = timedelta(seconds=1)  # timeAdded is stored in whole seconds


def same_devices(wanted: Sequence[Mapping[str, Any]], stored: Sequence[Mapping[str, Any]]) -> bool:
    """Order counts; key order, empty fields and the spelling of quantities do not.

    A taint without ``timeAdded`` in ``wanted`` equals the stored one with any time: the server
    fills it in.
    """
    return len(wanted) == len(stored) and all(map(_same_device, wanted, stored))


def same_counters(
    wanted: Sequence[Mapping[str, Any]], stored: Sequence[Mapping[str, Any]]
) -> bool:
    """``sharedCounters``, with the same freedom."""
    return [_plain(found) for found in wanted] == [_plain(found) for found in stored]


def with_stored_times(
    wanted: Sequence[Mapping[str, Any]], stored: Sequence[Mapping[str, Any]]
) -> list[Object]:
    """Devices as wanted; taints that had been there before keep their ``timeAdded``."""
    before = {str(device.get("name")): _times(device) for device in stored}
    return [_timed(device, before.get(str(device.get("name")), {})) for device in wanted]


def _timed(device: Mapping[str, Any], times: Mapping[tuple[Any, ...], Any]) -> Object:
    found = dict(device)
    if found.get("taints"):
        found["taints"] = [
            {**taint, "timeAdded": times[_taint_key(taint)]}
            if "timeAdded" not in taint and _taint_key(taint) in times
            else dict(taint)
            for taint in found["taints"]
        ]
    return found


def _times(device: Mapping[str, Any]) -> dict[tuple[Any, ...], Any]:
    return {
        _taint_key(taint): taint["timeAdded"]
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }


def _taint_key(taint: Mapping[str, Any]) -> tuple[Any, ...]:
    return taint.get("key"), taint.get("value") or "", taint.get("effect")


def _same_device(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    left, right = _plain(wanted), _plain(stored)
    return _same_taints(left.pop("taints", []), right.pop("taints", [])) and left == right


def _same_taints(wanted: Sequence[Object], stored: Sequence[Object]) -> bool:
    return len(wanted) == len(stored) and all(map(_same_taint, wanted, stored))


def _same_taint(wanted: Object, stored: Object) -> bool:
    if _taint_key(wanted) != _taint_key(stored):
        return False
    mine, theirs = wanted.get("timeAdded"), stored.get("timeAdded")
    if mine is None or mine == theirs:
        return True
    if theirs is None:
        return False
    try:
        return abs(datetime.fromisoformat(mine) - datetime.fromisoformat(theirs)) <= TIME_TOLERANCE
    except (ValueError, TypeError):  # not a time, or without a zone
        return False


_QUANTITIES = frozenset({"value", "default", "min", "max", "step"})


def _plain(found: Mapping[str, Any]) -> Object:
    """Without empty fields (the server leaves them out), quantities as numbers."""
    plain = {key: _field(key, value) for key, value in found.items()}
    return {key: value for key, value in plain.items() if not _is_empty(value)}


def _field(key: str, value: Any) -> Any:
    if key in ("capacity", "counters"):
        return {name: _entry(entry) for name, entry in (value or {}).items()}
    if key == "consumesCounters":
        return [_plain(use) for use in value or ()]
    return _without_empty(value)


def _without_empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: _without_empty(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if not _is_empty(inner)}
    if isinstance(value, (list, tuple)):
        return [_without_empty(inner) for inner in value]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (dict, list)) and not value)


def _entry(value: Any) -> Any:
    """A capacity or a counter: its quantities are compared as amounts."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: _amounts(inner) if key in _QUANTITIES or key == "validValues" else _entry(inner)
        for key, inner in value.items()
        if not _is_empty(inner)
    }


def _amounts(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_amounts(inner) for inner in value]
    try:
        return quantity(value)
    except ValueError:
        return value
