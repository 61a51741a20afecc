"""Clusters that are reached by a kubeconfig: kind's, and an existing one."""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from e2e.cluster import build
from e2e.cluster.errors import ClusterError, SetupError
from e2e.cluster.kube import Kube
from e2e.cluster.polling import poll
from e2e.cluster.targets import RELEASES
from e2e.cluster.transport import proxied
from e2e.image import build as image_build
from e2e.kind.cluster import KindCluster
from e2e.sites.site import Ability, workers


class Proxy:
    """A ``kubectl proxy`` on a Unix socket, as long as the context is entered."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubectl = [
            str(build.binaries(RELEASES["1.37"]) / "kubectl"),
            f"--kubeconfig={kubeconfig}",
        ]
        self._folder = tempfile.TemporaryDirectory(prefix="aliquot-proxy-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Kube:
        """Start it and wait until the API server answers through it."""
        path = Path(self._folder.name) / "api"
        log = Path(self._folder.name) / "log"
        with log.open("wb") as output_file:
            self._process = subprocess.Popen(
                [*self._kubectl, "proxy", f"--unix-socket={path}"],
                stdout=output_file,
                stderr=subprocess.STDOUT,
            )
        kube = Kube(proxied(path), self._kubectl)
        poll(
            kube.healthy,
            f"the API server of {self._kubectl[1]}",
            timeout_s=60,
            detail=lambda: log.read_text(errors="replace"),
        )
        return kube

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._folder.cleanup()


class ExistingSite:
    """Whatever a kubeconfig leads to. The image must be where its nodes can pull it."""

    name = "existing"
    abilities: frozenset[Ability] = frozenset()

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.image = os.environ.get("ALIQUOT_IMAGE", "")
        if not self.image:
            raise SetupError(
                "provider existing: ALIQUOT_IMAGE names the driver's image in a registry that "
                "the nodes pull from (deploy/Dockerfile builds it)"
            )
        self._proxy = Proxy(kubeconfig)
        self.kube = self._proxy.start()

    def argv(self, argv: Sequence[str]) -> list[str]:
        """As it is."""
        return list(argv)

    def values(self) -> Mapping[str, Any]:
        """None but the defaults."""
        return {}

    def load(self) -> None:
        """The nodes pull it."""

    def workers(self) -> list[str]:
        """Nodes that take pods."""
        return workers(self.kube)

    def on_node(self, node: str, *command: str) -> str:
        """Never called: not among the abilities."""
        raise RuntimeError("provider existing has no way into a node")

    def stop_node(self, node: str) -> None:
        """Never called: not among the abilities."""
        raise RuntimeError("provider existing stops no node")

    def start_node(self, node: str) -> None:
        """Never called either."""
        raise RuntimeError("provider existing starts no node")

    def evidence(self) -> Sequence[tuple[str, str]]:
        """Events and pods of the whole cluster."""
        with suppress(ClusterError, OSError):
            return [("events", self.kube.kubectl("get", "events", "-A")[-6000:])]
        return []

    def close(self) -> None:
        """End the way in; the cluster stays."""
        self.kube.close()
        self._proxy.stop()


class KindSite:
    """A kind cluster that exists."""

    name = "kind"
    abilities: frozenset[Ability] = frozenset(
        {"load images", "several nodes", "look at nodes", "stop a node"}
    )
    image = image_build.reference()

    def __init__(self, cluster: KindCluster) -> None:
        self.cluster = cluster
        self.kubeconfig = cluster.kubeconfig
        self._proxy = Proxy(cluster.kubeconfig)
        self.kube = self._proxy.start()

    def argv(self, argv: Sequence[str]) -> list[str]:
        """As it is: kind's API server has a port of the host."""
        return list(argv)

    def values(self) -> Mapping[str, Any]:
        """None but the defaults: a kind node is as a cluster's nodes are."""
        return {}

    def load(self) -> None:
        """Build the image and import it into every node."""
        self.cluster.load(image_build.archive())

    def workers(self) -> list[str]:
        """Nodes that take pods."""
        return workers(self.kube)

    def on_node(self, node: str, *command: str) -> str:
        """Run in the node's container."""
        return self.cluster.on_node(node, *command)

    def stop_node(self, node: str) -> None:
        """Stop the node's container."""
        self.cluster.stop_node(node)

    def start_node(self, node: str) -> None:
        """Start the node's container."""
        self.cluster.start_node(node)

    def evidence(self) -> Sequence[tuple[str, str]]:
        """Events, and what the kubelets said last."""
        found = [("events", self.kube.kubectl("get", "events", "-A")[-6000:])]
        for node in self.cluster.nodes():
            command = ("journalctl", "-n15", "-u", "kubelet")
            found.append((f"kubelet of {node}", self.cluster.on_node(node, *command, check=False)))
        return found

    def close(self) -> None:
        """End the way in; the cluster stays."""
        self.kube.close()
        self._proxy.stop()
