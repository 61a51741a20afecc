"""The chart as it is installed on a site, and what it leaves there."""

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError
from e2e.cluster.kube import Kube, Object, parse_documents
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, manifests
from e2e.sites.helm import NAMESPACE, Helm, Values, merged
from e2e.sites.site import Site

SIMULATED = "h100-80gb:4"
CARDS = 4  # one for each mode
_SIDE_BY_SIDE = {"gpus": [{"select": {"all": True}, "modes": ["gpu", "mig", "mps", "timeslice"]}]}
# Schedulers before 1.36.3 grant whole cards beside shares: there a card is one or the other.
_FIXED = {
    "gpus": [
        {"select": {"pciAddress": "0000:3b:00.0"}, "modes": ["mps"]},
        {"select": {"pciAddress": "0000:3c:00.0"}, "modes": ["timeslice"]},
        {"select": {"all": True}, "modes": ["gpu", "mig"]},
    ]
}


def image_values(image: str) -> dict[str, Any]:
    """``image:`` of the chart for a full name."""
    repository, _, tag = image.rpartition(":")
    return {"image": {"repository": repository, "tag": tag}}


@dataclass
class Installed:
    """A release on a site."""

    site: Site
    helm: Helm
    values: dict[str, Any]

    @property
    def kube(self) -> Kube:
        """The administrator's client."""
        return self.site.kube

    def upgrade(self, *changes: Values) -> str:
        """Upgrade with these changes, once; returns the notes."""
        return self.helm.upgrade(merged(self.values, *changes))

    def pods(self, component: str = "node") -> list[Object]:
        """Pods of a DaemonSet that are not on their way out."""
        labels = f"app.kubernetes.io/component={component}"
        found = self.kube.list("Pod", NAMESPACE, labels=labels)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def hurry(self) -> None:
        """A changed pod gets its ConfigMaps anew at once, else within a minute and a half."""
        for pod in self.pods():
            word = f"aliquot.dev/hurry={time.monotonic_ns()}"
            self.kube.kubectl(
                "-n", NAMESPACE, "annotate", "pod", pod["metadata"]["name"], "--overwrite", word
            )

    def uids(self, component: str = "node") -> set[str]:
        """UIDs of those pods."""
        return {str(pod["metadata"]["uid"]) for pod in self.pods(component)}

    def slices(self, node: str | None = None) -> list[Object]:
        """Our ResourceSlices, of one node if it is given."""
        specs = ((item, item["spec"]) for item in self.kube.list("ResourceSlice"))
        return [
            item
            for item, spec in specs
            if spec["driver"] == DRIVER and node in (None, spec.get("nodeName"))
        ]

    def devices(self, node: str) -> list[Object]:
        """What a node offers."""
        return [each for item in self.slices(node) for each in item["spec"].get("devices", [])]

    def wait_published(self) -> None:
        """Until every worker offers its whole cards."""

        def offered(node: str) -> int:
            told = [each["attributes"] for each in self.devices(node)]
            return sum(attributes["type"] == {"string": "gpu"} for attributes in told)

        def there() -> bool:
            return all(offered(node) == wanted for node in self.site.workers())

        wanted = CARDS if sharing_beside_whole(self.kube) else CARDS - 2
        poll(
            there,
            f"{wanted} whole cards on {self.site.workers()}",
            timeout_s=120,
            detail=lambda: self.site.kube.kubectl("get", "pods", "-A", "-o", "wide"),
        )

    def daemons(self, node: str) -> dict[str, int]:
        """Pids of the MPS control daemons of a node, by their card's UUID."""
        (pod,) = (p for p in self.pods("mps") if p["spec"]["nodeName"] == node)
        command = ["aliquot", "mps", "status", "-o", "json", f"--run-dir={self._run_dir}"]
        told = json.loads(self.kube.exec(pod["metadata"]["name"], command, namespace=NAMESPACE))
        return {card["spec"]["gpu"]: card["pid"] for card in told["cards"]}

    @property
    def _run_dir(self) -> str:
        return str(self.values.get("shares", {}).get("runDir", "/run/aliquot-mps"))

    # The node's folders ------------------------------------------------------------------

    @property
    def kubelet_root(self) -> str:
        """As the chart has it."""
        return str(self.values.get("kubeletRoot", "/var/lib/kubelet"))

    @property
    def cdi_dir(self) -> str:
        """As the chart has it."""
        return str(self.values.get("cdiDir", "/var/run/cdi"))

    def files(self, node: str, folder: str, pattern: str) -> list[str]:
        """Names of files on the node that match a shell pattern; needs ``look at nodes``."""
        script = f"cd {shlex.quote(folder)} 2>/dev/null && ls -1 {pattern} 2>/dev/null || true"
        return self.site.on_node(node, "sh", "-c", script).split()

    def records(self, node: str) -> list[str]:
        """Claims in the node's journal."""
        return self.files(node, f"{self.kubelet_root}/plugins/{DRIVER}/claims", "*.json")

    def cdi_files(self, node: str) -> list[str]:
        """CDI specs of ours on the node."""
        return self.files(node, self.cdi_dir, f"{DRIVER}-claim_*.json")

    def copy_cdi(self, node: str, folder: Path) -> list[Path]:
        """Copy the node's CDI specs of ours; returns where they are."""
        made = []
        for name in self.cdi_files(node):
            made.append(folder / name)
            made[-1].write_text(self.site.on_node(node, "cat", f"{self.cdi_dir}/{name}"))
        return made

    def wait_clean(self, node: str) -> None:
        """Until the node holds no claim of ours any more."""
        poll(
            lambda: not self.records(node) and not self.cdi_files(node),
            f"node {node} to hold no claim",
            timeout_s=90,
            detail=lambda: f"left: {self.records(node)} {self.cdi_files(node)}",
        )


def sharing_beside_whole(kube: Kube) -> bool:
    """Whether this cluster's scheduler keeps shares and whole cards apart (docs/sharing.md)."""
    version = re.match(r"v(\d+)\.(\d+)\.(\d+)", kube.request("GET", "/version")["gitVersion"])
    return version is not None and tuple(map(int, version.groups())) >= (1, 36, 3)


def base_values(site: Site) -> dict[str, Any]:
    """Simulated cards, in every mode that the cluster can have, the image that the site has."""
    chosen = {
        "simulate": SIMULATED,
        "policy": _SIDE_BY_SIDE if sharing_beside_whole(site.kube) else _FIXED,
        "plugin": {"logFormat": "text", "extraArgs": ["--refresh-interval=2"]},
    }
    return merged(chosen, image_values(site.image), site.values())


@contextmanager
def installed(site: Site, *changes: Values) -> Iterator[Installed]:
    """The chart, installed and ready; uninstalled afterwards."""
    if "load images" in site.abilities:
        site.load()
    _forget_manifests(site.kube)
    release = Installed(site, Helm(site), merged(base_values(site), *changes))
    release.upgrade()
    release.wait_published()
    try:
        yield release
    finally:
        release.helm.uninstall()


def _forget_manifests(kube: Kube) -> None:
    """Objects that other tests have applied by hand: helm takes over nothing that is not its."""
    for item in parse_documents(manifests("rbac", "classes", "own-node-slices")):
        kube.delete(item["kind"], item["metadata"]["name"])
    with suppress(ClusterError):
        kube.delete("ServiceAccount", "aliquot-node", NAMESPACE)
