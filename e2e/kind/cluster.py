"""The kind cluster as a value: made, given images, entered, deleted."""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import build
from e2e.cluster.console import phase, say
from e2e.cluster.errors import ClusterError
from e2e.cluster.targets import KIND, KIND_NODE
from e2e.kind import node_image
from e2e.kind.engine import PODMAN_PACKAGES, Engine, LateError, chosen, run

HERE = Path(__file__).parent
NAME = "aliquot"
CREATE_S = 240.0
"""A creation takes 40 s, on a busy machine twice that; one in nine hung while workers joined."""
ATTEMPTS = 3
PUBLISHED = "kindest/node:v1.37.0"
"""kind's own node image of this minor version, where Docker Hub can be reached."""


def configuration(text: str, image: str) -> dict[str, Any]:
    """kind's configuration with the image filled in for every node."""
    config: dict[str, Any] = yaml.safe_load(text)
    for node in config["nodes"]:
        node["image"] = image
    return config


class KindCluster:
    """One cluster of ``cluster.yaml``. ``folder`` keeps its kubeconfig."""

    def __init__(self, folder: Path, config: Path | None = None, name: str = NAME) -> None:
        self.name = name
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._config = config or HERE / "cluster.yaml"
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """Docker or podman, looked for once."""
        if self._engine is None:
            self._engine = chosen()
        return self._engine

    def exists(self) -> bool:
        """Whether kind knows a cluster of this name."""
        return self.name in self._kind("get", "clusters", timeout_s=60).split()

    def create(self) -> None:
        """Create it; a creation that hangs is reported, cleared and tried again.

        Raises ClusterError when one fails, or when the last attempt hangs too.
        """
        image = self.node_image()
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "kind.json"
        content = configuration(self._config.read_text(encoding="utf-8"), image)
        config.write_text(json.dumps(content), encoding="utf-8")
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with phase(f"kind cluster {self.name} created, attempt {attempt}"):
                    self._create(config)
            except LateError as error:
                say(f"kind cluster, attempt {attempt} of {ATTEMPTS} hung: {error}")
                self._keep_evidence(attempt)
                self.delete()
            else:
                return
        raise ClusterError(f"kind cluster {self.name}: {ATTEMPTS} creations hung, see above")

    def _create(self, config: Path) -> None:
        arguments = ["create", "cluster", f"--name={self.name}", f"--config={config}"]
        kept = ["--retain", f"--kubeconfig={self.kubeconfig}", "--wait=120s"]
        self._kind(*arguments, *kept, timeout_s=CREATE_S)

    def _keep_evidence(self, attempt: int) -> None:
        """kind's own log export of a failed attempt, so that a retry hides nothing."""
        target = self.folder / f"failed-{attempt}"
        try:
            self._kind("export", "logs", str(target), f"--name={self.name}", timeout_s=120)
            say(f"logs of attempt {attempt}: {target}")
        except ClusterError as error:
            say(f"no logs of attempt {attempt}: {error}")

    def node_image(self) -> str:
        """The published image where it can be had, else one of our own, made when absent."""
        asked = os.environ.get("ALIQUOT_KIND_IMAGE")
        if asked:
            return asked
        if self.engine.name == "docker" and self._pull(PUBLISHED):
            return PUBLISHED
        return node_image.ensure(self.engine)

    def _pull(self, image: str) -> bool:
        try:
            self.engine.run("pull", image, timeout_s=600)
        except ClusterError as error:
            say(f"{image} cannot be pulled, a node image is made here instead: {error}")
            return False
        return True

    def delete(self) -> None:
        """Delete the cluster. Absent is fine."""
        self._kind("delete", "cluster", f"--name={self.name}", timeout_s=120)

    def load(self, archive: Path) -> None:
        """Import an image archive into every node."""
        with phase(f"image {archive.name} loaded"):
            self._kind("load", "image-archive", str(archive), f"--name={self.name}", timeout_s=300)

    def nodes(self) -> list[str]:
        """Names of the nodes, which are those of their containers."""
        return sorted(self._kind("get", "nodes", f"--name={self.name}", timeout_s=60).split())

    def on_node(self, node: str, *command: str, check: bool = True) -> str:
        """Output of a command in a node's container."""
        return self.engine.run("exec", node, *command, check=check).stdout

    def stop_node(self, node: str) -> None:
        """End a node's container, as a machine that is switched off for good."""
        self.engine.run("stop", "--time=1", node)

    def start_node(self, node: str) -> None:
        """Boot it again."""
        self.engine.run("start", node)

    def _kind(self, *arguments: str, timeout_s: float) -> str:
        program = str(build.binaries(KIND) / "kind")
        return run([program, *arguments], self.engine.merged_environment(), timeout_s).stdout


def setup() -> None:
    """Packages and programs, those that are missing."""
    extra = {} if chosen().name == "docker" else PODMAN_PACKAGES
    build.build_all(extra=[KIND, KIND_NODE], more_packages=extra)
