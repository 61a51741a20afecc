"""What a container gets for CDI device ids, as a runtime puts it together. Reads spec files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class NotInjectableError(Exception):
    """A CDI id that no spec file resolves: a runtime would refuse to start the container."""


@dataclass(frozen=True, slots=True)
class Injected:
    """The sum of the edits, in the order a runtime applies them."""

    env: tuple[str, ...]  # "NAME=value"
    nodes: tuple[tuple[str, str], ...]  # (path in the container, path on the host)
    mounts: tuple[str, ...]  # paths in the container


def resolve(folder: Path, ids: Sequence[str]) -> Injected:
    """The edits of each id's device, then those of its spec, each spec once.

    Raises:
        NotInjectableError: naming the id and the folder.
    """
    specs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    edits: list[Mapping[str, Any]] = []
    used: list[Mapping[str, Any]] = []
    for one in ids:
        spec, device = _find(specs, one, folder)
        edits.append(device.get("containerEdits") or {})
        if spec not in used:
            used.append(spec)
    edits += [spec.get("containerEdits") or {} for spec in used]
    nodes = {
        node["path"]: node.get("hostPath", node["path"]) for node in _all(edits, "deviceNodes")
    }
    return Injected(
        env=tuple(_all(edits, "env")),
        nodes=tuple(sorted(nodes.items())),
        mounts=tuple(sorted({mount["containerPath"] for mount in _all(edits, "mounts")})),
    )


def _find(
    specs: Sequence[Mapping[str, Any]], one: str, folder: Path
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    kind, _, name = one.partition("=")
    for spec in specs:
        for device in spec["devices"] if spec["kind"] == kind else ():
            if device["name"] == name:
                return spec, device
    raise NotInjectableError(f"CDI device {one}: no spec file in {folder} has it")


def _all(edits: Sequence[Mapping[str, Any]], key: str) -> Iterator[Any]:
    for each in edits:
        yield from each.get(key) or ()
