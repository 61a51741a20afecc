"""The local one-node cluster as a site."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.image import build as image_build
from e2e.sites import daemons
from e2e.sites.site import Ability


class LocalSite:
    """A started ``LocalCluster``."""

    name = "local"
    abilities: frozenset[Ability] = frozenset({"load images", "look at nodes", "stop the API"})
    image = image_build.reference()

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    @property
    def kube(self) -> Kube:
        """The administrator's client."""
        return self.cluster.kube

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.cluster.kubeconfig

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Into the cluster's network namespace."""
        return self.cluster.netns.argv(argv)

    def values(self) -> Mapping[str, Any]:
        """All folders are the cluster's own, so that nothing of the host's is touched."""
        root = self.cluster.layout.root
        return {
            "kubeletRoot": str(self.cluster.kubelet_root),
            "cdiDir": str(self.cluster.cdi_dir),
            "simulateRoot": str(root / "sim-chart"),
            "shares": {"runDir": str(self._run_dir), "stateDir": f"{root}/chart-mps"},
        }

    @property
    def _run_dir(self) -> Path:
        """Short: paths of pipe directories are limited to 87 bytes."""
        return Path(f"/run/e2e-{self.cluster.spec.name}")

    def close(self) -> None:
        """End what outlives pods."""
        daemons.end(self._run_dir)

    def load(self) -> None:
        """Build the image and import it."""
        self.cluster.import_image(image_build.archive())

    def workers(self) -> list[str]:
        """The one node."""
        return [self.cluster.node_name]

    def on_node(self, node: str, *command: str) -> str:
        """The node's folders are this machine's."""
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def stop_node(self, node: str) -> None:
        """Never called: not among the abilities."""
        raise RuntimeError("the only node of the local cluster is not stopped")

    def start_node(self, node: str) -> None:
        """Never called either."""
        raise RuntimeError("the only node of the local cluster is not stopped")

    def evidence(self) -> Sequence[tuple[str, str]]:
        """The ends of the programs' logs."""
        return [(process.name, process.tail(15)) for process in self.cluster.processes]
