"""Claims for partitions with pods that the scheduler places and nobody runs."""

from dataclasses import dataclass
from typing import Any

from e2e.cluster.kube import Kube, Object
from e2e.cluster.polling import poll

NODE, CLASS = "packing-cards", "packing"
_REFUSED = "cannot allocate all claims"  # the dynamicresources plugin of kube-scheduler


def node_object() -> Object:
    """A node without a kubelet; pods go there because the devices are there."""
    amounts = {"cpu": "1000", "memory": "1000Gi", "pods": "10000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


@dataclass(frozen=True)
class Desk:
    """Asks for one partition at a time. A claim and its pod have the claim's number as name."""

    kube: Kube
    driver: str

    def ask(self, number: int, profile: str) -> str | None:
        """Name of the device that the scheduler gave, None if it found no room.

        What was released before counts: the scheduler hears of claims in one watch, so it knows
        of the earlier deletions when it first sees this claim.
        """
        name = f"c-{number}"
        self.kube.create(self._claim(name, profile))
        self.kube.create(self._pod(name))
        decided = poll(lambda: self._decided(name), f"pod {name} decided", interval_s=0.01)
        if not decided["spec"].get("nodeName"):
            self.release(number, allocated=False)  # else it takes the place that frees next
            return None
        claim = self.kube.get("ResourceClaim", name)
        return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])

    def _decided(self, name: str) -> Object | None:
        pod = self.kube.get("Pod", name)
        conditions = pod.get("status", {}).get("conditions", ())
        refused = any(_REFUSED in each.get("message", "") for each in conditions)
        return pod if refused or pod["spec"].get("nodeName") else None

    def release(self, number: int, allocated: bool = True) -> None:
        """The claim ends: nothing of it is left when this returns."""
        name = f"c-{number}"
        self.kube.delete("Pod", name, grace_s=0)
        self.kube.wait_gone("Pod", name)
        self.kube.delete("ResourceClaim", name)
        if allocated:
            self.kube.wait_gone("ResourceClaim", name)

    def _claim(self, name: str, profile: str) -> Object:
        expression = f"device.attributes['{self.driver}'].profile == '{profile}'"
        exactly: dict[str, Any] = {
            "deviceClassName": CLASS,
            "selectors": [{"cel": {"expression": expression}}],
        }
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }

    def _pod(self, name: str) -> Object:
        container = {"name": "none", "image": "none"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "containers": [{**container, "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                "tolerations": [{"operator": "Exists"}],  # the node has no kubelet: unreachable
            },
        }
