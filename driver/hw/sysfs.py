"""What the kernel knows of a card that NVML does not tell."""

import re
from dataclasses import dataclass
from pathlib import Path

from driver.model.ids import PciAddress

_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controller, without programming interface
# A root complex in a resolved sysfs path; the form of resource.kubernetes.io/pcieRoot (KEP-4381).
_ROOT_COMPLEX = re.compile(r"^pci[0-9a-f]{4,}:[0-9a-f]{2}$")


@dataclass(frozen=True, slots=True)
class Sysfs:
    """PCI facts below ``root``/sys."""

    root: Path

    def numa_node(self, pci: PciAddress) -> int | None:
        """The NUMA node next to the card; None where the kernel says -1 or nothing."""
        try:
            node = int(self._read(pci, "numa_node"))
        except ValueError:
            return None
        return node if node >= 0 else None

    def pcie_root(self, pci: PciAddress) -> str | None:
        """The root complex above the card, ``"pci0000:00"``; None where sysfs does not show it."""
        path = self._folder(pci)
        if not path.exists():
            return None
        parts = path.resolve().parts
        return next((part for part in parts if _ROOT_COMPLEX.match(part)), None)

    def kernel_driver(self, pci: PciAddress) -> str | None:
        """The module bound to the card: ``"nvidia"``, ``"vfio-pci"``, or None."""
        link = self._folder(pci) / "driver"
        return link.resolve().name if link.is_symlink() else None

    def nvidia_pci_functions(self) -> tuple[PciAddress, ...]:
        """Every NVIDIA display controller on the bus, served by a driver or not; sorted."""
        folder = self.root / "sys/bus/pci/devices"
        if not folder.is_dir():
            return ()
        found = (PciAddress(path.name.lower()) for path in folder.iterdir())
        return tuple(sorted(pci for pci in found if self._is_nvidia_display(pci)))

    def _is_nvidia_display(self, pci: PciAddress) -> bool:
        return self._read(pci, "vendor").lower() == _NVIDIA and self._read(
            pci, "class"
        ).lower().startswith(_DISPLAY_CLASSES)

    def _folder(self, pci: PciAddress) -> Path:
        return self.root / "sys/bus/pci/devices" / pci

    def _read(self, pci: PciAddress, name: str) -> str:
        """The content without its newline; empty where there is none."""
        try:
            return (self._folder(pci) / name).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ""
