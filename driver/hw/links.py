"""NVLink of a card, link by link."""

from collections.abc import Iterator

from driver.errors import HardwareError, NotSupportedError
from driver.hw.codes import Return, optional
from driver.hw.nvml import Handle, ask
from driver.hw.readouts import Link, nvlink_version, pci_address
from driver.model.ids import PciAddress

_BOUND = 64  # for broken answers only: API 13 knows 36 links
_TO_GPU, _TO_SWITCH = 0, 2  # NVML_NVLINK_DEVICE_TYPE_*


def active_links(handle: Handle) -> tuple[Link, ...]:
    """The links that are up; empty on a card without."""
    return tuple(_read(handle, link) for link in _active(handle))


def _active(handle: Handle) -> Iterator[int]:
    for link in range(_BOUND):
        try:
            active = ask("nvmlDeviceGetNvLinkState", handle, link)
        except NotSupportedError:  # this link is not wired; the next may be
            continue
        except HardwareError as error:
            if error.code == Return.INVALID_ARGUMENT:  # past the last link
                return
            raise
        if active:
            yield link


def _read(handle: Handle, link: int) -> Link:
    remote = optional(lambda: int(ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)))
    return Link(
        version=nvlink_version(optional(lambda: ask("nvmlDeviceGetNvLinkVersion", handle, link))),
        to_switch=remote == _TO_SWITCH,
        peer=optional(lambda: _peer(handle, link)) if remote == _TO_GPU else None,
    )


def _peer(handle: Handle, link: int) -> PciAddress:
    return pci_address(ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link).busId)
