"""Claims and Events in the embedded API server."""

from typing import Any

from kubeletplugin.claims import claim_path
from kubeletplugin.contract import ClaimRef, Object
from kubeletplugin.kube import ApiError, KubeClient
from kubeletplugin.testing.apiserver import ApiServer
from tests.driver.machine import allocation

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
V1 = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}


def ref_of(claim: Object) -> ClaimRef:
    meta = claim["metadata"]
    return ClaimRef(meta["namespace"], meta["name"], meta["uid"])


async def create_claim(client: KubeClient, name: str, *devices: str, **options: Any) -> Object:
    """A claim as the scheduler leaves it."""
    made = await client.create(CLAIMS, {**V1, "metadata": {"name": name}, "spec": SPEC})
    return await allocate(client, name, *devices, **options) if devices else made


async def allocate(client: KubeClient, name: str, *devices: str, **options: Any) -> Object:
    """Allocate a claim, anew where it was allocated before: its UID stays."""
    claim = await client.get(claim_path("default", name))
    if (claim.get("status") or {}).get("allocation"):
        await deallocate(client, name)
    user = {"resource": "pods", "name": "user", "uid": "user-uid"}
    status = {"allocation": allocation(*devices, **options), "reservedFor": [user]}
    return await _set_status(client, name, status)


async def deallocate(client: KubeClient, name: str) -> Object:
    return await _set_status(client, name, {})


async def _set_status(client: KubeClient, name: str, status: Object) -> Object:
    """As the scheduler does it: again after a conflict, for the driver writes here too."""
    path = claim_path("default", name)
    while True:
        try:
            return await client.update(
                f"{path}/status", {**await client.get(path), "status": status}
            )
        except ApiError as error:
            if error.code != 409:
                raise


async def delete_claim(client: KubeClient, name: str) -> None:
    await client.delete(claim_path("default", name))


def events(api: ApiServer) -> dict[str, list[str]]:
    """The notes of all Events by reason."""
    found: dict[str, list[str]] = {}
    for event in api.objects("events"):
        found.setdefault(event["reason"], []).append(event["note"])
    return found


def devices_told(api: ApiServer, name: str) -> list[Object]:
    """``status.devices`` of a claim."""
    for claim in api.objects("resourceclaims"):
        if claim["metadata"]["name"] == name:
            return list((claim.get("status") or {}).get("devices") or [])
    return []


def published(api: ApiServer) -> dict[str, list[str]]:
    """Keys of the taints, without their prefix, by device of all ResourceSlices."""
    return {
        device["name"]: [taint["key"].split("/")[1] for taint in device.get("taints", ())]
        for part in api.objects("resourceslices")
        for device in part["spec"].get("devices") or ()
    }
