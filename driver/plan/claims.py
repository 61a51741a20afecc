"""From a raw ResourceClaim to what this driver acts on."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from api.reading import show
from api.v1alpha1 import ComputeMode as ConfiguredMode
from api.v1alpha1 import Config, ConfigError, Configs, merge, parse_config
from driver.errors import ClaimError, InvalidConfigError, UnknownDeviceError
from driver.model.claims import AllocatedClaim, Allocation
from driver.model.gpu import ComputeMode
from driver.model.ids import ClaimUid, DeviceName, RequestName
from driver.model.shares import Consumed, Wishes
from driver.model.steps import TimeSliceInterval
from driver.model.units import Bytes
from kubeletplugin.quantities import quantity

_RESULTS = "status.allocation.devices.results"
_CONFIG = "status.allocation.devices.config"
_SOURCES = ("FromClass", "FromClaim")

# The API server has checked these. They become file names, CDI ids and environment, so a value of
# another form is refused here as well.
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_UID = re.compile("[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?")
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DEVICE = re.compile(_LABEL)
_REQUEST = re.compile(f"{_LABEL}(/{_LABEL})?")
_POOL = re.compile(rf"{_LABEL}([./]{_LABEL})*")
_MOST = 1 << 62  # of a capacity; the API's numbers have 63 bits

_MODES = {
    ConfiguredMode.DEFAULT: ComputeMode.DEFAULT,
    ConfiguredMode.EXCLUSIVE_PROCESS: ComputeMode.EXCLUSIVE_PROCESS,
}


@dataclass(frozen=True, slots=True)
class _Config:
    """Parameters of ours with the requests they are for; none named: for all."""

    requests: frozenset[str]
    config: Config

    def covers(self, request: str) -> bool:
        """A config names a request, or one sub-request of it (``main/sub``)."""
        return not self.requests or bool(self.requests & {request, request.partition("/")[0]})


def parse_claim(raw: object, driver_name: str, pool: str) -> AllocatedClaim:
    """The allocations of ``driver_name`` with their configuration resolved.

    Config of the class comes first and config of the claim after it, each in the API's order;
    later ones win (KEP-4381). Results and config of other drivers are not looked at.

    Raises:
        InvalidConfigError: parameters for this driver are wrong, also where no result uses them.
        UnknownDeviceError: a result of ours is in another pool than ``pool``.
        ClaimError: the claim is not allocated, has nothing of ours, or is no ResourceClaim.
    """
    claim = _object(raw, "claim")
    metadata = _object(claim.get("metadata"), "metadata")
    uid = _text(metadata.get("uid"), "metadata.uid", _UID)
    namespace = _text(metadata.get("namespace"), "metadata.namespace", _NAME)
    name = _text(metadata.get("name"), "metadata.name", _NAME)
    who = f"claim {namespace}/{name}:{uid}"
    status = claim.get("status")
    allocation = status.get("allocation") if isinstance(status, Mapping) else None
    if allocation is None:
        raise ClaimError(f"{who} is not allocated: only the scheduler can do that")
    devices = _object(_object(allocation, "status.allocation").get("devices") or {}, _RESULTS)
    configs = _configs(devices.get("config"), driver_name)
    found = [
        _allocation(result, position, pool, configs)
        for position, result in enumerate(_list(devices.get("results"), _RESULTS))
        if _object(result, f"{_RESULTS}[{position}]").get("driver") == driver_name
    ]
    if not found:
        raise ClaimError(f"{who} has no allocated device of driver {driver_name}")
    return AllocatedClaim(ClaimUid(uid), namespace, name, tuple(found))


def _allocation(
    result: Mapping[str, Any], position: int, pool: str, configs: Sequence[_Config]
) -> Allocation:
    path = f"{_RESULTS}[{position}]"
    request = _text(result.get("request"), f"{path}.request", _REQUEST)
    device = _text(result.get("device"), f"{path}.device", _DEVICE)
    found = _text(result.get("pool"), f"{path}.pool", _POOL)
    if found != pool:
        text = f"device {device} of pool {found} is allocated, but this node's pool is {pool}"
        raise UnknownDeviceError(f"{path}: {text}")
    share = result.get("shareID")
    config = Configs()
    for each in configs:
        if each.covers(request):
            config = merge(config, each.config)
    mode = config.gpu.compute_mode
    return Allocation(
        position=position,
        request=RequestName(request),
        pool=pool,
        device=DeviceName(device),
        share_id=None if share is None else _text(share, f"{path}.shareID", _UID),
        admin=result.get("adminAccess") is True,
        compute_mode=None if mode is None else _MODES[mode],
        consumed=_consumed(result, path),
        wishes=_wishes(config),
    )


def _consumed(result: Mapping[str, Any], path: str) -> Consumed | None:
    """None where nothing is told, as of a device that is allocated once."""
    path = f"{path}.consumedCapacity"
    raw = result.get("consumedCapacity")
    if not raw:
        return None
    amounts = {
        name: _amount(value, f"{path}.{name}") for name, value in _object(raw, path).items()
    }
    memory = amounts.get("memory")
    return Consumed(
        memory=None if memory is None else Bytes(memory),
        compute_percent=amounts.get("computePercent"),
        shares=amounts.get("shares"),
    )


def _amount(value: object, path: str) -> int:
    """A capacity in whole units, rounded down: nobody gets more than was counted."""
    try:
        amount = quantity(value)
    except ValueError:
        raise ClaimError(f"{path}: got {show(value)}, want a quantity") from None
    if not 0 <= amount <= _MOST:
        raise ClaimError(f"{path}: got {show(value)}, want 0 or more")
    return int(amount)


def _wishes(config: Configs) -> Wishes:
    limit, interval = config.mps.memory_limit, config.time_slice.interval
    return Wishes(
        memory_limit=None if limit is None else Bytes(limit),
        percent_limit=config.mps.compute_percent_limit,
        require=config.mps.require_enforcement,
        interval=None if interval is None else TimeSliceInterval[interval.upper()],
    )


def _configs(raw: object, driver_name: str) -> list[_Config]:
    """Our configs, the class's before the claim's."""
    problems: list[str] = []
    by_source: dict[str, list[_Config]] = {source: [] for source in _SOURCES}
    for i, entry in enumerate(_list(raw, _CONFIG)):
        path = f"{_CONFIG}[{i}]"
        opaque = _object(entry, path).get("opaque")
        if not isinstance(opaque, Mapping) or opaque.get("driver") != driver_name:
            continue
        source, requests = entry.get("source"), entry.get("requests") or []
        if source not in _SOURCES:
            raise ClaimError(f"{path}.source: got {show(source)}, want one of {_SOURCES}")
        if not _are_texts(requests):
            raise ClaimError(f"{path}.requests: got {show(requests)}, want names of requests")
        try:
            config = parse_config(opaque.get("parameters"), f"{path}.opaque.parameters")
        except ConfigError as error:
            problems += error.problems
        else:
            by_source[source].append(_Config(frozenset(requests), config))
    if problems:
        raise InvalidConfigError(problems)
    return [config for source in _SOURCES for config in by_source[source]]


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _object(value: object, path: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise ClaimError(f"{path}: got {show(value)}, want an object")


def _list(value: object, path: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise ClaimError(f"{path}: got {show(value)}, want a list")


def _text(value: object, path: str, form: re.Pattern[str]) -> str:
    if isinstance(value, str) and form.fullmatch(value):
        return value
    raise ClaimError(f"{path}: got {show(value)}, want a text of the form {form.pattern}")
