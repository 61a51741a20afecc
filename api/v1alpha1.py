"""Opaque parameters of a DeviceClass or a ResourceClaim, group ``gpu.aliquot.dev/v1alpha1``.

Examples::

    {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "GpuConfig",
     "computeMode": "ExclusiveProcess"}
    {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "MpsConfig",
     "memoryLimit": "20Gi", "computePercentLimit": 50, "requireEnforcement": "mpsProcess"}
    {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "TimeSliceConfig", "interval": "Long"}

One parser serves the node and the webhook. It is plain Python on purpose: the node process loads
no validation library for one small object. What comes out are numbers and words of closed lists,
so that nothing a user writes can become a path, a variable or a second line.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, assert_never

from api.policy_sharing import INTERVALS
from api.quantities import read_memory
from api.reading import Reader, join, show

API_VERSION = "gpu.aliquot.dev/v1alpha1"

# What a limit is worth, the weakest first: docs/sharing.md. "cgroup" is about memory only.
ENFORCEMENT = ("none", "mpsCooperative", "mpsProcess", "mpsNamespace", "cgroup", "hardware")


class ComputeMode(StrEnum):
    """How many processes may open the card (``nvmlDeviceSetComputeMode``)."""

    DEFAULT = "Default"
    EXCLUSIVE_PROCESS = "ExclusiveProcess"


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """Preferences for whole cards. None means: not asked for, the card stays as it is."""

    compute_mode: ComputeMode | None = None


@dataclass(frozen=True, slots=True)
class MpsConfig:
    """Limits of shares, on top of what the claim's capacity says; None and "none" limit nothing.

    A class sets them for everybody who uses it; a claim can only make them tighter.
    """

    memory_limit: int | None = None  # bytes, whole MiB
    compute_percent_limit: int | None = None  # 1 to 100
    require_enforcement: str = "none"  # of ENFORCEMENT: refused where limits are worth less


@dataclass(frozen=True, slots=True)
class TimeSliceConfig:
    """A preference for devices that take turns. None: the node policy's, else the card's."""

    interval: str | None = None  # of INTERVALS


Config: TypeAlias = GpuConfig | MpsConfig | TimeSliceConfig


@dataclass(frozen=True, slots=True)
class Configs:
    """All that is configured for one request."""

    gpu: GpuConfig = GpuConfig()
    mps: MpsConfig = MpsConfig()
    time_slice: TimeSliceConfig = TimeSliceConfig()


class ConfigError(ValueError):
    """Carries every problem found, each as ``<JSON path>: <what is wrong>``."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def parse_config(raw: object, path: str = "$") -> Config:
    """The only way from a user's JSON to a ``Config``. Paths in problems start with ``path``.

    An optional field that is null counts as left out, as it does for Kubernetes' own types.

    Raises:
        ConfigError: with all problems, so that they can be mended in one go.
    """
    if not isinstance(raw, Mapping):
        wanted = f"an object with apiVersion {API_VERSION} and a kind ({', '.join(KINDS)})"
        raise ConfigError([f"{path}: got {show(raw)}, want {wanted}"])
    reader = Reader()
    reader.choice(join(path, "apiVersion"), raw.get("apiVersion"), (API_VERSION,))
    kind = reader.choice(join(path, "kind"), raw.get("kind"), KINDS)
    if kind is None:
        raise ConfigError(reader.problems)
    fields, read = _KINDS[kind]
    reader.only(path, raw, ("apiVersion", "kind", *fields))
    config = read(_Given(reader, path, raw))
    if reader.problems:
        raise ConfigError(reader.problems)
    return config


def merge(base: Configs, over: Config) -> Configs:
    """``over`` applied on ``base``; call it with the class's configs first, then the claim's.

    A preference that ``over`` states replaces the earlier one. Of limits the tighter counts,
    whoever set it: a claim cannot loosen what its class says.
    """
    match over:
        case GpuConfig():
            mode = over.compute_mode or base.gpu.compute_mode
            return Configs(GpuConfig(mode), base.mps, base.time_slice)
        case MpsConfig():
            return Configs(base.gpu, _tighter(base.mps, over), base.time_slice)
        case TimeSliceConfig():
            interval = over.interval or base.time_slice.interval
            return Configs(base.gpu, base.mps, TimeSliceConfig(interval))
        case _:
            assert_never(over)


def _tighter(a: MpsConfig, b: MpsConfig) -> MpsConfig:
    levels = (a.require_enforcement, b.require_enforcement)
    return MpsConfig(
        _lower(a.memory_limit, b.memory_limit),
        _lower(a.compute_percent_limit, b.compute_percent_limit),
        max(levels, key=ENFORCEMENT.index),
    )


def _lower(a: int | None, b: int | None) -> int | None:
    return min((each for each in (a, b) if each is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Given:
    """The object with its optional fields."""

    reader: Reader
    path: str
    raw: Mapping[Any, Any]

    def choice(self, key: str, choices: Collection[str]) -> str | None:
        if self.raw.get(key) is None:
            return None
        return self.reader.choice(join(self.path, key), self.raw[key], choices)

    def memory(self, key: str) -> int | None:
        if self.raw.get(key) is None:
            return None
        return read_memory(self.reader, join(self.path, key), self.raw[key])

    def percent(self, key: str) -> int | None:
        if self.raw.get(key) is None:
            return None
        return self.reader.integer(join(self.path, key), self.raw[key], 1, 100)


def _gpu(given: _Given) -> GpuConfig:
    mode = given.choice("computeMode", [mode.value for mode in ComputeMode])
    return GpuConfig(None if mode is None else ComputeMode(mode))


def _mps(given: _Given) -> MpsConfig:
    return MpsConfig(
        given.memory("memoryLimit"),
        given.percent("computePercentLimit"),
        given.choice("requireEnforcement", ENFORCEMENT) or "none",
    )


def _time_slice(given: _Given) -> TimeSliceConfig:
    return TimeSliceConfig(given.choice("interval", INTERVALS))


# Each kind with its fields and its reader.
_KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[_Given], Config]]] = {
    "GpuConfig": (("computeMode",), _gpu),
    "MpsConfig": (("memoryLimit", "computePercentLimit", "requireEnforcement"), _mps),
    "TimeSliceConfig": (("interval",), _time_slice),
}
KINDS = tuple(_KINDS)
