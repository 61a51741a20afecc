"""Identifiers that must not be mixed up."""

from typing import NewType

GpuUuid = NewType("GpuUuid", str)  # "GPU-…"; stable across reboots
ClaimUid = NewType("ClaimUid", str)  # metadata.uid of the ResourceClaim
DeviceName = NewType("DeviceName", str)  # DNS label, unique in the node's pool
RequestName = NewType("RequestName", str)  # "request" or "request/subrequest"
PciAddress = NewType("PciAddress", str)  # extended BDF in lower case, "0000:3b:00.0"
