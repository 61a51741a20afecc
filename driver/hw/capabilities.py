"""The capabilities of a partition: what a container must be able to open to see it.

``/proc/driver/nvidia/capabilities`` has them for the instances that exist. Their device nodes are
made by nvidia-modprobe, not by the kernel, so they may be missing on the host.
"""

import re
from pathlib import Path

from driver.errors import HardwareError
from driver.model.gpu import DeviceNode

_MAJOR = re.compile(r"^\s*(\d+)\s+nvidia-caps$", re.MULTILINE)
_FIELD = re.compile(r"^DeviceFile(Minor|Mode):\s*(\d+)\s*$", re.MULTILINE)


def capability_nodes(
    root: Path, minor: int, gpu_instance: int, compute_instance: int
) -> tuple[DeviceNode, ...]:
    """The nodes of a GPU instance and a compute instance of the card with this minor.

    Raises HardwareError where the kernel does not tell them.
    """
    major = _major(root)
    place = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
    files = (place / "access", place / f"ci{compute_instance}" / "access")
    return tuple(_node(path, major) for path in files)


def _major(root: Path) -> int:
    """It is given out when the module is loaded: read, never assumed."""
    path = root / "proc/devices"
    match = _MAJOR.search(_text(path))
    if match is None:
        raise HardwareError(
            f"read {path}",
            "has no line for nvidia-caps, so a container could not be given a partition; the "
            "loaded NVIDIA kernel module has no MIG support",
        )
    return int(match[1])


def _node(path: Path, major: int) -> DeviceNode:
    fields = {name: int(value) for name, value in _FIELD.findall(_text(path))}
    if "Minor" not in fields:
        raise HardwareError(f"read {path}", "has no line DeviceFileMinor")
    minor = fields["Minor"]
    return DeviceNode(
        path=f"/dev/nvidia-caps/nvidia-cap{minor}",
        host_path=None,
        numbers=(major, minor),
        mode=fields.get("Mode", 0o444),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise HardwareError(
            f"read {path}",
            f"{error.strerror}; the NVIDIA kernel module tells there which device node a "
            "partition has",
        ) from error
