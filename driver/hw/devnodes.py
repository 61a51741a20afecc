"""Device nodes below a root. They are made by nvidia-modprobe, not by the kernel."""

import os
from pathlib import Path

from driver.errors import HardwareError
from driver.model.gpu import DeviceNode

# What every CUDA process opens, with the way to make it; the others are taken where present.
_NEEDED = {"nvidiactl": "nvidia-modprobe", "nvidia-uvm": "nvidia-modprobe -u -c 0"}
_WANTED = ("nvidia-uvm-tools", "nvidia-modeset")


def gpu_nodes(root: Path, minor: int, host_root: Path | None = None) -> tuple[DeviceNode, ...]:
    """The nodes of one card.

    ``root`` is where the driver root is seen from here, ``host_root`` where the host has it
    (the same unless the driver runs in a container). Raises HardwareError where one is missing:
    a container without it would start and find no card (dra-driver-nvidia-gpu#1380).
    """
    name = f"nvidia{minor}"
    _demand(root, name, f"nvidia-modprobe -c {minor}")
    return (_node(host_root or root, name),)


def control_nodes(root: Path, host_root: Path | None = None) -> tuple[DeviceNode, ...]:
    """The nodes that all cards share: nvidiactl, nvidia-uvm, and where present nvidia-uvm-tools
    and nvidia-modeset. Raises HardwareError where one of the first two is missing."""
    for name, remedy in _NEEDED.items():
        _demand(root, name, remedy)
    present = (name for name in _WANTED if os.path.exists(f"{root}/dev/{name}"))
    return tuple(_node(host_root or root, name) for name in (*_NEEDED, *present))


def _demand(root: Path, name: str, remedy: str) -> None:
    if not os.path.exists(f"{root}/dev/{name}"):
        raise HardwareError(
            f"device node {root / 'dev' / name}",
            f"does not exist, so a container would not see the card; run `{remedy}` on the node, "
            "or set the driver root to the folder whose dev/ has it",
        )


def _node(host_root: Path, name: str) -> DeviceNode:
    return DeviceNode(path=f"/dev/{name}", host_path=os.path.join(host_root, "dev", name))
