"""Claims allocated by the test, and calls on the plugin's socket: what the kubelet would call,
without its retry periods of a minute and more."""

import asyncio
from pathlib import Path

import grpc.aio

from e2e.cluster.kube import Kube, Object
from e2e.workloads import claim
from kubeletplugin.contract import ClaimRef
from kubeletplugin.testing.kubelet import Answer, PluginClient


def allocate(
    kube: Kube, namespace: str, name: str, spec: Object, results: list[Object]
) -> ClaimRef:
    """Create a claim and write its allocation as the scheduler would, reserved for no real pod."""
    made = kube.create(claim(name, namespace, spec))
    config = [
        {"source": "FromClaim", "requests": each.get("requests", []), "opaque": each["opaque"]}
        for each in spec["devices"].get("config", [])
    ]
    made["status"] = {
        "allocation": {"devices": {"results": results, "config": config}},
        "reservedFor": [{"resource": "pods", "name": "nobody", "uid": "0"}],
    }
    kube.replace(made, "status")
    return ClaimRef(namespace, name, made["metadata"]["uid"])


def release(kube: Kube, ref: ClaimRef) -> None:
    """Take the allocation back and delete the claim."""
    found = kube.get("ResourceClaim", ref.name, ref.namespace)
    found["status"] = {}
    kube.replace(found, "status")
    kube.delete("ResourceClaim", ref.name, ref.namespace)


def prepare(socket: Path, ref: ClaimRef) -> Answer | None:
    """The answer for one claim; None where the plugin died before it answered."""

    async def call() -> Answer | None:
        async with PluginClient("", socket, ()) as plugin:
            try:
                return (await plugin.prepare([ref]))[ref.uid]
            except grpc.aio.AioRpcError:
                return None

    return asyncio.run(call())


def unprepare(socket: Path, ref: ClaimRef) -> str | None:
    """The error text, "" for success; None where the plugin died before it answered."""

    async def call() -> str | None:
        async with PluginClient("", socket, ()) as plugin:
            try:
                return (await plugin.unprepare([ref]))[ref.uid]
            except grpc.aio.AioRpcError:
                return None

    return asyncio.run(call())
