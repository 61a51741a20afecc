"""Claims of a bench at the API server: made and allocated at once, deleted together."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench import claims
from bench.claims import Offer
from kubeletplugin.claims import claim_path
from kubeletplugin.contract import ClaimRef, Object
from kubeletplugin.kube import KubeClient

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_AT_ONCE = 8


@dataclass
class Stored:
    """The claims of one run in one namespace."""

    client: KubeClient
    namespace: str
    run: str
    pod: Object
    made: list[str] = field(default_factory=list)

    async def make(
        self,
        driver: str,
        offers: Sequence[Offer],
        count: int,
        parameters: Object | None = None,
    ) -> list[ClaimRef]:
        """``count`` claims, on the offers in turn. Raises ApiError."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> ClaimRef:
            async with gate:
                return await self._one(driver, offers[number % len(offers)], parameters)

        return list(await asyncio.gather(*map(one, range(count))))

    async def _one(self, driver: str, offer: Offer, parameters: Object | None) -> ClaimRef:
        name = f"bench-{self.run}-{secrets.token_hex(5)}"
        made = await self.client.create(
            f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims",
            claims.claim(name, self.namespace, self.run),
        )
        self.made.append(name)
        body = claims.allocated(made, offer, driver, self.pod, parameters)
        await self.client.update(f"{claim_path(self.namespace, name)}/status", body)
        return ClaimRef(self.namespace, name, made["metadata"]["uid"])

    async def delete(self) -> None:
        """One by one: deleting the collection is one request, too long for hundreds of claims."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> None:
            async with gate:
                await self.client.delete(claim_path(self.namespace, name))

        await asyncio.gather(*map(one, self.made))


async def published(client: KubeClient, driver: str, node: str | None = None) -> tuple[Offer, ...]:
    """What a driver offers (on one node). Raises ValueError when that is nothing."""
    slices, _ = await client.list_pages(_SLICES)
    found = claims.offers(slices, driver, node)
    if not found:
        raise ValueError(f"driver {driver} has published no device in any ResourceSlice")
    return found


@asynccontextmanager
async def stored(client: KubeClient, namespace: str) -> AsyncIterator[Stored]:
    """A run's claims; all of them are deleted at the end."""
    run = secrets.token_hex(4)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    pod = await client.create(pods, claims.holder(f"bench-{run}", namespace, run))
    found = Stored(client, namespace, run, pod)
    try:
        yield found
    finally:
        await found.delete()
        await client.delete(f"{pods}/bench-{run}", [("gracePeriodSeconds", "0")])
