"""Opaque parameters of a DeviceClass or a ResourceClaim, group ``gpu.aliquot.dev/v1alpha1``.

Example::

    {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "GpuConfig",
     "computeMode": "ExclusiveProcess"}

One parser serves the node and the webhook. It is plain Python on purpose: the node process loads
no validation library for one small object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from api.reading import Reader, join, show

API_VERSION = "gpu.aliquot.dev/v1alpha1"
KINDS = ("GpuConfig",)


class ComputeMode(StrEnum):
    """How many processes may open the card (``nvmlDeviceSetComputeMode``)."""

    DEFAULT = "Default"
    EXCLUSIVE_PROCESS = "ExclusiveProcess"


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """Preferences for whole cards. None means: not asked for, the card stays as it is."""

    compute_mode: ComputeMode | None = None


class ConfigError(ValueError):
    """Carries every problem found, each as ``<JSON path>: <what is wrong>``."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


_FIELDS = ("apiVersion", "kind", "computeMode")


def parse_config(raw: object, path: str = "$") -> GpuConfig:
    """The only way from a user's JSON to ``GpuConfig``. Paths in problems start with ``path``.

    An optional field that is null counts as left out, as it does for Kubernetes' own types.

    Raises:
        ConfigError: with all problems, so that they can be mended in one go.
    """
    if not isinstance(raw, Mapping):
        wanted = f"an object with apiVersion {API_VERSION} and a kind ({', '.join(KINDS)})"
        raise ConfigError([f"{path}: got {show(raw)}, want {wanted}"])
    reader = Reader()
    reader.choice(join(path, "apiVersion"), raw.get("apiVersion"), (API_VERSION,))
    reader.choice(join(path, "kind"), raw.get("kind"), KINDS)
    reader.only(path, raw, _FIELDS)
    mode = None
    if raw.get("computeMode") is not None:
        modes = [mode.value for mode in ComputeMode]
        mode = reader.choice(join(path, "computeMode"), raw["computeMode"], modes)
    if reader.problems:
        raise ConfigError(reader.problems)
    return GpuConfig(compute_mode=None if mode is None else ComputeMode(mode))


def merge(base: GpuConfig, over: GpuConfig) -> GpuConfig:
    """``over`` applied on ``base``; call it with the class's configs first, then the claim's.

    Every field so far is a preference, so the later one wins where it says something. A limit
    must instead keep the tighter of the two: a claim cannot loosen what its class set.
    """
    mode = base.compute_mode if over.compute_mode is None else over.compute_mode
    return GpuConfig(compute_mode=mode)
