"""NVLink and the multi-node fabric."""

from typing import Any

from driver.sim.boards import Links
from driver.sim.nvml.codes import INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, Refused
from driver.sim.nvml.cvalues import check_version, fill, number, put, target
from driver.sim.nvml.registry import AFTER_535, symbol
from driver.sim.nvml.session import Gpu
from driver.sim.topology import Pci, fabric_uuid, switch

_TYPE_GPU, _TYPE_SWITCH = 0, 2  # NVML_NVLINK_DEVICE_TYPE_*
_NOT_SUPPORTED_STATE, _COMPLETED = 0, 3  # NVML_GPU_FABRIC_STATE_*
_FABRIC_V2, _FABRIC_V3 = 0x02000024, 0x03000028
_CAP_SLI, _CAP_VALID = 4, 5  # NVML_NVLINK_CAP_*, the last one
_HEALTHY = 1  # NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
_FULL_BANDWIDTH = 2  # NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE
CLIQUE = 1


def _links(gpu: Gpu, link: Any) -> tuple[Links, int]:
    """The card's NVLink facts and a checked link number."""
    links = gpu.profile.links
    if links is None:
        raise Refused(NOT_SUPPORTED)
    at = number(link)
    if not 0 <= at < links.count:
        raise Refused(INVALID_ARGUMENT)
    return links, at


def _active(gpu: Gpu, links: Links, link: int) -> bool:
    """Up, unless turned off on either side or without a card at the other end."""
    if link in gpu.state.links_down:
        return False
    if links.switched:
        return True
    peer = gpu.card.peer
    return peer is not None and link not in gpu.world.gpu(peer).links_down


def _remote(gpu: Gpu, link: Any) -> tuple[Pci, int, int]:
    """Address, PCI id and device type at the other end of an active link."""
    links, at = _links(gpu, link)
    if not _active(gpu, links, at):
        raise Refused(NOT_SUPPORTED)
    if links.switched:
        return switch(links, at), links.switch_device_id, _TYPE_SWITCH
    # an active link without a switch ends in the other card of the pair
    peer = gpu.session.cards[gpu.index if gpu.card.peer is None else gpu.card.peer]
    return peer.pci, gpu.profile.pci_device_id, _TYPE_GPU


@symbol("nvmlDeviceGetNvLinkState")
def _state(gpu: Gpu, link: Any, out: Any) -> int:
    return put(out, int(_active(gpu, *_links(gpu, link))))


@symbol("nvmlDeviceGetNvLinkVersion")
def _version(gpu: Gpu, link: Any, out: Any) -> int:
    return put(out, _links(gpu, link)[0].version)


@symbol("nvmlDeviceGetNvLinkCapability")
def _capability(gpu: Gpu, link: Any, capability: Any, out: Any) -> int:
    """P2P, system memory and atomics yes; SLI bridge no."""
    _links(gpu, link)
    asked = number(capability)
    if not 0 <= asked <= _CAP_VALID:
        raise Refused(INVALID_ARGUMENT)
    return put(out, int(asked != _CAP_SLI))


@symbol("nvmlDeviceGetNvLinkErrorCounter")
def _errors(gpu: Gpu, link: Any, _counter: Any, out: Any) -> int:
    _links(gpu, link)
    return put(out, 0)


@symbol("nvmlDeviceGetNvLinkRemotePciInfo_v2")
def _remote_pci(gpu: Gpu, link: Any, out: Any) -> int:
    pci, device_id, _ = _remote(gpu, link)
    struct = target(out)
    fill(struct, ("domain", "bus", "device"), (pci.domain, pci.bus, pci.device))
    struct.busId = pci.nvml
    struct.busIdLegacy = pci.legacy
    struct.pciDeviceId = device_id
    return SUCCESS


@symbol("nvmlDeviceGetNvLinkRemoteDeviceType")
def _remote_type(gpu: Gpu, link: Any, out: Any) -> int:
    return put(out, _remote(gpu, link)[2])


@symbol("nvmlDeviceGetGpuFabricInfo")
def _fabric(gpu: Gpu, out: Any) -> int:
    _fill_fabric(gpu, target(out))
    return SUCCESS


@symbol("nvmlDeviceGetGpuFabricInfoV", since=AFTER_535)
def _fabric_versioned(gpu: Gpu, out: Any) -> int:
    struct = target(out)
    version = check_version(struct, _FABRIC_V2, _FABRIC_V3)
    completed = _fill_fabric(gpu, struct)
    struct.healthMask = _FULL_BANDWIDTH if completed else 0
    if version == _FABRIC_V3:
        struct.healthSummary = _HEALTHY if completed else 0
    return SUCCESS


def _fill_fabric(gpu: Gpu, struct: Any) -> bool:
    """Cards that could join a fabric answer with a state, the others not at all."""
    if not gpu.profile.fabric:
        raise Refused(NOT_SUPPORTED)
    completed = gpu.world.fabric
    struct.clusterUuid[:] = list(fabric_uuid(gpu.profile) if completed else bytes(16))
    struct.status = SUCCESS if completed else NOT_SUPPORTED
    struct.cliqueId = CLIQUE if completed else 0
    struct.state = _COMPLETED if completed else _NOT_SUPPORTED_STATE
    return completed
