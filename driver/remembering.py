"""What is kept of the cards over a restart: facts and health, under ``gpus`` and beside it."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from driver.errors import StateError
from driver.model.gpu import Gpu
from driver.model.health import CardHealth
from driver.model.ids import GpuUuid
from driver.plan.facts import gpu_from_dict, gpu_to_dict
from driver.plan.health import after_boot, from_dict, to_dict

log = logging.getLogger(__name__)

Versions: TypeAlias = tuple[str, tuple[int, int]]  # of the driver, and of CUDA


@dataclass(frozen=True, slots=True)
class Remembered:
    versions: Versions = ("", (0, 0))  # as last enumerated
    gpus: dict[GpuUuid, Gpu] = field(default_factory=dict)
    health: dict[GpuUuid, CardHealth] = field(default_factory=dict)


def from_values(values: Mapping[str, Any], boot_id: str) -> Remembered:
    """What cannot be trusted is left aside; health of another boot starts anew."""
    cuda = values.get("cudaDriverVersion", (0, 0))
    found = Remembered((values.get("driverVersion", ""), (int(cuda[0]), int(cuda[1]))))
    same_boot = values.get("bootID") == boot_id
    for raw in values.get("gpus", ()):
        try:
            gpu = gpu_from_dict({key: raw[key] for key in raw if key != "health"})
            health = from_dict(raw.get("health", {}))
        except StateError as error:
            log.warning("a remembered card is forgotten: %s", error)
            continue
        found.gpus[gpu.uuid] = gpu
        found.health[gpu.uuid] = health if same_boot else after_boot(health)
    return found


def to_values(
    versions: Versions,
    gpus: Iterable[Gpu],
    health: Mapping[GpuUuid, CardHealth],
    boot_id: str,
) -> dict[str, Any]:
    """Without minors: device numbers are never stored, they change over a reboot."""
    version, cuda = versions
    return {
        "bootID": boot_id,
        "driverVersion": version,
        "cudaDriverVersion": list(cuda),
        "gpus": [
            gpu_to_dict(gpu) | {"health": to_dict(health[gpu.uuid]), "minor": -1} for gpu in gpus
        ],
    }
