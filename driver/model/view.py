"""What the node looks like to a container: the part of the hardware that CDI specs are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driver.model.gpu import DeviceNode, Gpu
from driver.model.ids import GpuUuid
from driver.model.mig import MigDevice, Place


@dataclass(frozen=True, slots=True)
class Mount:
    """A file of the driver, mounted read-only at ``container_path``."""

    host_path: str  # on the host, below the driver root
    container_path: str


@dataclass(frozen=True, slots=True)
class MpsFolders:
    """Where the clients of a card's control daemon find it; containers have the same paths."""

    pipe: str  # at most 87 bytes with all that is named below it
    shm: str | None = None  # mounted as /dev/shm; None: nothing is needed
    server: str | None = None  # protocol 3: the name below ``pipe`` that namespaces are in


@dataclass(frozen=True, slots=True)
class NodeView:
    """The node now. Device numbers and files move over a reboot: they are read, not recorded."""

    driver_name: str
    gpus: Mapping[GpuUuid, Gpu]
    nodes: Mapping[GpuUuid, tuple[DeviceNode, ...]]  # only nodes that exist
    partitions: Mapping[Place, MigDevice] = field(default_factory=dict)  # only those that exist
    mps: Mapping[GpuUuid, MpsFolders] = field(default_factory=dict)  # of cards with a daemon
    common: Mapping[str, Any] = field(default_factory=dict)  # containerEdits for every container
