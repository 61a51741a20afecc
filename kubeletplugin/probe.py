"""What the cluster keeps of a ResourceSlice, found out without publishing anything.

With a feature gate off the API server drops its fields without an error. A ``dryRun=All`` create
shows what comes back and stores nothing (run on 1.34.4 with the gates off).
"""

import re

from kubeletplugin.contract import Object
from kubeletplugin.kube import ApiError, KubeClient

TAINTS = "taints"
COUNTERS = "counters"
SHARING = "sharing"
FEATURES = frozenset({TAINTS, COUNTERS, SHARING})
GATES = {
    TAINTS: "DRADeviceTaints",
    COUNTERS: "DRAPartitionableDevices",
    SHARING: "DRAConsumableCapacity",
}
SLICES = "/apis/resource.k8s.io/v1/resourceslices"

_VERSION = re.compile(r"v?1\.(\d+)(?:\.(\d+))?")


async def server_version(client: KubeClient) -> tuple[int, int]:
    """Minor and patch of Kubernetes 1.x: ``v1.36.3-gke.1`` → ``(36, 3)``.

    Raises ``ApiError``, also for a version that is not 1.x.
    """
    text = str((await client.version()).get("gitVersion", ""))
    match = _VERSION.match(text)
    if match is None:
        raise ApiError(
            0, "UnknownVersion", f"API server {client.server}: version {text!r}, not 1.x"
        )
    return int(match[1]), int(match[2] or 0)


async def probe(client: KubeClient, driver: str, node: str) -> frozenset[str]:
    """The features of ``FEATURES`` whose fields this API server keeps.

    The slice names ``driver`` and ``node``, so an admission policy treats it like a real one.
    Raises ``ApiError``.
    """
    minor, _ = await server_version(client)
    stored = await client.create(SLICES, _sample(driver, node, minor), [("dryRun", "All")])
    device = stored["spec"]["devices"][0]
    kept = {
        TAINTS: bool(device.get("taints")),
        COUNTERS: bool(device.get("consumesCounters")),
        SHARING: bool(device.get("allowMultipleAllocations"))
        and "requestPolicy" in device["capacity"]["memory"],
    }
    return frozenset(feature for feature, found in kept.items() if found)


def _sample(driver: str, node: str, minor: int) -> Object:
    uses = {"counterSet": "probe", "counters": {"part": {"value": "1"}}}
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    device: Object = {
        "name": "probe",
        "capacity": {"memory": {"value": "2", "requestPolicy": policy}},
        "allowMultipleAllocations": True,
        "consumesCounters": [uses],
        "taints": [{"key": "probe", "effect": "NoSchedule"}],
    }
    spec: Object = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [device],
    }
    if minor <= 34:  # counters stand in the slice of their devices; later they must not
        spec["sharedCounters"] = [{"name": "probe", "counters": uses["counters"]}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "dry-run-probe-"},
        "spec": spec,
    }
