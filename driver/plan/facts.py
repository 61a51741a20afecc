"""Facts about cards as JSON data and back, so that a lost card is still known after a restart."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from driver.errors import StateError
from driver.model.gpu import Engines, Fabric, Gpu, MigMode, MigProfile, Nvlink
from driver.model.shares import MpsFacts, SharingFacts


def gpu_to_dict(gpu: Gpu) -> dict[str, Any]:
    """The fields of ``Gpu`` under their own names; peers as a sorted list."""
    raw = asdict(gpu)
    if gpu.nvlink is not None:
        raw["nvlink"]["peers"] = sorted(gpu.nvlink.peers)
    raw["compute_capability"] = list(gpu.compute_capability)
    return raw


def gpu_from_dict(raw: Mapping[str, Any]) -> Gpu:
    """The inverse of ``gpu_to_dict``.

    Raises:
        StateError: a field is missing, unknown or of another shape, as another version wrote it.
    """
    values = dict(raw)
    try:
        major, minor = values["compute_capability"]
        values["compute_capability"] = (int(major), int(minor))
        values["engines"] = Engines(**values["engines"])
        if values["nvlink"] is not None:
            link = values["nvlink"]
            version = None if link["version"] is None else tuple(link["version"])
            peers = frozenset(link["peers"])
            values["nvlink"] = Nvlink(**{**link, "version": version, "peers": peers})
        if values["fabric"] is not None:
            values["fabric"] = Fabric(**values["fabric"])
        if values["mig_mode"] is not None:
            values["mig_mode"] = MigMode(**values["mig_mode"])
        values["mig_profiles"] = tuple(map(_profile, values.get("mig_profiles", ())))
        return Gpu(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"remembered facts of card {raw.get('uuid')}: {error}") from error


def sharing_to_dict(facts: SharingFacts) -> dict[str, Any]:
    """The fields of ``SharingFacts`` under their own names."""
    raw = asdict(facts)
    if facts.mps is not None:
        raw["mps"]["protocols"] = list(facts.mps.protocols)
    return raw


def sharing_from_dict(raw: Mapping[str, Any]) -> SharingFacts:
    """The inverse of ``sharing_to_dict``.

    Raises:
        StateError: a field is missing, unknown or of another shape, as another version wrote it.
    """
    values = dict(raw)
    try:
        if (mps := values["mps"]) is not None:
            protocols = tuple(int(each) for each in mps["protocols"])
            values["mps"] = MpsFacts(**{**mps, "protocols": protocols})
        return SharingFacts(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"remembered facts of sharing: {error}") from error


def _profile(raw: Mapping[str, Any]) -> MigProfile:
    more = {"starts": tuple(raw["starts"]), "engines": Engines(**raw["engines"])}
    return MigProfile(**{**raw, **more})
