"""The cases that describe the embedded API server, against a real kube-apiserver.

What passes here and in ``tests/kube`` is what both do alike, so demo and tests may rely on it.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from e2e.cluster.local import LocalCluster
from kubeletplugin.kube import KubeClient
from tests.contract.cases_apiserver import ApiServerCases, world

__all__ = ["world"]


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[KubeClient]:
    """The administrator's client; the loop's thread is in the cluster's namespace for the test."""
    with cluster.netns.entered():
        async with KubeClient.from_environment(str(cluster.kubeconfig)) as made:
            yield made
            await turns()  # a watch that a case has left ends as a task of its own
        await turns()


async def turns() -> None:
    """Let the loop carry out what is scheduled: the end of a TLS connection takes a few turns."""
    for _ in range(20):
        await asyncio.sleep(0)


class TestRealApiServer(ApiServerCases):
    """Not one case is left out."""
