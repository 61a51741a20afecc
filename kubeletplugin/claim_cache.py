"""Opt-in for small clusters: claims from a watch instead of a GET for each prepare.

The watch cannot be narrowed to a node: every plugin then watches every claim of the cluster.
"""

from kubeletplugin.claims import PATIENCE_S, ClaimSource
from kubeletplugin.contract import ClaimRef, Object
from kubeletplugin.kube import KubeClient
from kubeletplugin.reflector import Pace, Reflector

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"


class ClaimCache:
    """``get`` answers from the copy only what a kubelet may act on: the claim with this UID,
    allocated and reserved, while the watch runs. All else is read from the API server, as the
    copy may lag behind the pod that the kubelet starts."""

    def __init__(self, client: KubeClient, source: ClaimSource, pace: Pace | None = None) -> None:
        """``source`` reads what the copy must not answer."""
        self._source = source
        self._reflector = Reflector(client, CLAIMS, pace=pace or Pace(relist=600.0))
        self.synced = self._reflector.synced

    async def run(self) -> None:
        """Until cancelled."""
        await self._reflector.run()

    async def get(self, ref: ClaimRef, patience_s: float = PATIENCE_S) -> Object:
        """Raises what ``source`` raises. The UID of what was read is for the caller to compare."""
        found = self._reflector.store.get(ref.uid) if self._reflector.live else None
        if found is not None and _usable(found, ref):
            return found
        return await self._source.get(ref, patience_s)


def _usable(claim: Object, ref: ClaimRef) -> bool:
    metadata, status = claim["metadata"], claim.get("status") or {}
    return (
        (metadata.get("namespace"), metadata.get("name")) == (ref.namespace, ref.name)
        and bool(status.get("allocation"))
        and bool(status.get("reservedFor"))
    )
