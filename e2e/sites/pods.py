"""Pods with claims for any site: they run the driver's own image, which every node has."""

from dataclasses import dataclass
from typing import Any

from e2e.cluster.kube import Kube, Object
from e2e.cluster.polling import poll
from e2e.sites.site import Site
from e2e.workloads import SLEEP, claim_spec, pod, seen, template

LOOK = "env; ls /dev; echo looked; "
"""What ``workloads.seen`` reads; the image has no grep."""


@dataclass(frozen=True)
class User:
    """A running pod that holds a claim of its own."""

    kube: Kube
    namespace: str
    name: str
    uid: str

    def env(self) -> dict[str, str]:
        """The driver's variables in its container."""
        found, _ = seen(self.kube, self.name, self.namespace)
        return {key: value for key, value in found.items() if key.startswith("ALIQUOT_")}

    def card(self) -> str:
        """UUID of what it got first."""
        return self.env()["ALIQUOT_DEVICE_UUID"]

    def node(self) -> str:
        """Where it runs."""
        return str(self.kube.get("Pod", self.name, self.namespace)["spec"]["nodeName"])

    def unharmed(self) -> None:
        """It still runs, and its container was never restarted."""
        found = self.kube.get("Pod", self.name, self.namespace)
        assert found["metadata"]["uid"] == self.uid
        assert found["status"]["phase"] == "Running"
        assert [c["restartCount"] for c in found["status"]["containerStatuses"]] == [0]

    def end(self) -> None:
        """Delete the pod and wait until it is gone, and its claim with it."""
        self.kube.delete("Pod", self.name, self.namespace, grace_s=1)
        self.kube.wait_gone("Pod", self.name, self.namespace)
        poll(
            lambda: not self._claims(),
            f"the claim of {self.name} to be gone",
            detail=lambda: str(self._claims()),
        )

    def _claims(self) -> list[Object]:
        return [
            claim
            for claim in self.kube.list("ResourceClaim", self.namespace)
            if any(
                owner["uid"] == self.uid for owner in claim["metadata"].get("ownerReferences", [])
            )
        ]


def submit(site: Site, namespace: str, name: str, *requests: Object, **spec: Any) -> None:
    """A pod with a claim of these requests (one card of class ``gpu``); not waited for."""
    body = pod(name, namespace, LOOK + SLEEP, templates={"c": name}, **spec)
    for container in body["spec"]["containers"]:
        container["image"] = site.image
        container["imagePullPolicy"] = "IfNotPresent"
    site.kube.apply([template(name, namespace, claim_spec(*requests)), body])


def start(site: Site, namespace: str, name: str, *requests: Object, **spec: Any) -> User:
    """The same, running."""
    submit(site, namespace, name, *requests, **spec)
    found = site.kube.wait_pod(name, namespace=namespace, timeout_s=120)
    return User(site.kube, namespace, name, found["metadata"]["uid"])
