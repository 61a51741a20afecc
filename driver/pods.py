"""Which pods may use which claim."""

from collections.abc import Mapping, Set

from driver.model.ids import ClaimUid
from kubeletplugin.contract import Object


def pods_of(claim: Object) -> dict[str, str]:
    """Names of the pods in ``status.reservedFor`` of a claim, by UID."""
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    return {
        each["uid"]: each["name"]
        for each in reserved
        if each["resource"] == "pods" and not each.get("apiGroup")
    }


class ClaimPods:
    """``status.reservedFor`` as it was last seen: names of pods by their UID, for each claim.

    A pod that joins a prepared claim is learnt late: the kubelet does not ask again. Until then
    what it does is nobody's. Only the event loop calls.
    """

    def __init__(self) -> None:
        self._pods: dict[ClaimUid, Mapping[str, str]] = {}

    def learn(self, claim: Object) -> None:
        """From a claim as the API server has it."""
        self._pods[ClaimUid(claim["metadata"]["uid"])] = pods_of(claim)

    def keep(self, uids: Set[ClaimUid]) -> None:
        """Forget every other claim."""
        self._pods = {uid: pods for uid, pods in self._pods.items() if uid in uids}

    def of(self, uid: ClaimUid) -> Mapping[str, str]:
        """Names of the claim's pods by their UID; empty where nothing is known."""
        return self._pods.get(uid, {})

    def uids(self) -> dict[ClaimUid, Set[str]]:
        """The UIDs of each claim's pods, where there are any."""
        return {uid: pods.keys() for uid, pods in self._pods.items() if pods}
