"""Reading claims: the kubelet sends a name and a UID, the allocation is in the API server."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from kubeletplugin.contract import ClaimRef, ClaimRefusedError, Object
from kubeletplugin.kube import ApiError, Unreachable

# Of the kubelet's 45 s, which also hold the driver's own work. An API server that restarts, or a
# node's network that has lost its way (30 s until neighbours are asked for anew), is back within
# it, and an error would cost the pod 60 to 90 s more.
PATIENCE_S = 30.0
_RETRY_S = (0.2, 0.5, 1.0, 2.0)
_LEAST_S = 0.5  # for one try


class ClaimSource(Protocol):
    async def get(self, ref: ClaimRef, patience_s: float = PATIENCE_S) -> Object:
        """The claim as the API server has it, not yet checked against ``ref``.

        Tries again for ``patience_s`` seconds while the API server is away.

        Raises:
            ClaimRefusedError: there is no such claim.
            ClaimsUnavailableError: the API server does not answer.
        """
        ...


class Getting(Protocol):
    """The one call of ``KubeClient`` that reading claims needs."""

    async def get(self, path: str, *, timeout: float) -> Object:  # noqa: ASYNC109
        """``timeout`` is for the whole exchange, in seconds."""
        ...


class ClaimsUnavailableError(Exception):
    """The API server did not answer in time."""


def claim_path(namespace: str, name: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


class ClaimReader:
    """GETs each claim, with no client-side rate limit (5/s and a burst of 10 cost other drivers
    120 ms a claim). Tries again while the API server is away, or silent: a try has half of the
    time that is left, so that a connection that died unnoticed does not use up all of it."""

    def __init__(self, client: Getting, meanwhile: Callable[[], None] | None = None) -> None:
        """``meanwhile`` is called on the event loop once for each claim, when its first GET is
        under way: for what a driver can do before it knows the allocation."""
        self._client = client
        self._meanwhile = meanwhile

    async def get(self, ref: ClaimRef, patience_s: float = PATIENCE_S) -> Object:
        loop = asyncio.get_running_loop()
        clock = loop.time
        deadline = clock() + patience_s
        if self._meanwhile is not None:
            loop.call_soon(self._meanwhile)
        for attempt in itertools.count():
            limit_s = max((deadline - clock()) / 2, _LEAST_S)
            try:
                return await self._client.get(claim_path(ref.namespace, ref.name), timeout=limit_s)
            except ApiError as error:
                wait = _RETRY_S[min(attempt, len(_RETRY_S) - 1)]
                _give_up(ref, error, out_of_time=clock() + wait > deadline)
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")  # pragma: no cover


def _give_up(ref: ClaimRef, error: ApiError, *, out_of_time: bool) -> None:
    """Raise what ends the reading; return when trying again may help."""
    if error.code == 404:
        raise ClaimRefusedError(
            f"ResourceClaim {ref.namespace}/{ref.name} (UID {ref.uid}) does not exist any more"
        ) from error
    if error.code == 403:
        raise ClaimRefusedError(
            f"may not read ResourceClaim {ref.namespace}/{ref.name}: {error}; the plugin's "
            "ClusterRole needs the verb get on resourceclaims"
        ) from error
    temporary = isinstance(error, Unreachable) or error.code == 429 or error.code >= 500
    if not temporary:
        raise ClaimRefusedError(f"ResourceClaim {ref.namespace}/{ref.name}: {error}") from error
    if out_of_time:
        raise ClaimsUnavailableError(
            f"ResourceClaim {ref.namespace}/{ref.name} could not be read: {error}"
        ) from error


def check_claim(claim: Object, ref: ClaimRef) -> Object:
    """``claim`` if it is the allocated one that the kubelet means.

    Raises:
        ClaimRefusedError: another UID (the claim was made anew), or no allocation.
    """
    metadata = claim.get("metadata") or {}
    found = metadata.get("uid")
    if found != ref.uid:
        raise ClaimRefusedError(
            f"ResourceClaim {ref.namespace}/{ref.name} has UID {found}, the kubelet asked for "
            f"{ref.uid}: it was deleted and created again; the pod that used the old one must go"
        )
    if not (claim.get("status") or {}).get("allocation"):
        raise ClaimRefusedError(
            f"ResourceClaim {ref.namespace}/{ref.name} is not allocated (status.allocation is "
            "empty): a pod that was bound without the scheduler cannot use it"
        )
    return claim
