"""What the chart's tests need of a cluster, whoever provides it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from e2e.cluster.kube import Kube

Ability = Literal["load images", "several nodes", "look at nodes", "stop a node", "stop the API"]
"""Things that not every site can do; a test that needs one is skipped with a reason elsewhere."""


class Site(Protocol):
    """A running cluster into which the chart is installed."""

    @property
    def name(self) -> str:
        """The provider's word: local, kind, existing."""
        ...

    @property
    def abilities(self) -> frozenset[Ability]:
        """What can be done here."""
        ...

    @property
    def kube(self) -> Kube:
        """The administrator's client."""
        ...

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        ...

    @property
    def image(self) -> str:
        """Name under which the driver's image is there, after ``load``."""
        ...

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` where the API server can be reached."""
        ...

    def values(self) -> Mapping[str, Any]:
        """Values of the chart that this cluster needs."""
        ...

    def load(self) -> None:
        """Build the driver's image and give it to every node."""
        ...

    def workers(self) -> list[str]:
        """Names of the nodes that take pods."""
        ...

    def on_node(self, node: str, *command: str) -> str:
        """Output of a command that sees the node's folders. Needs ``look at nodes``."""
        ...

    def stop_node(self, node: str) -> None:
        """Switch a node off for good. Needs ``stop a node``."""
        ...

    def start_node(self, node: str) -> None:
        """Switch it on again. Needs ``stop a node``."""
        ...

    def evidence(self) -> Sequence[tuple[str, str]]:
        """Sections for the report of a failed test."""
        ...

    def close(self) -> None:
        """Let go of it; the cluster itself stays."""
        ...


def workers(kube: Kube) -> list[str]:
    """Nodes without a taint that keeps ordinary pods away."""
    found = []
    for node in kube.list("Node"):
        taints = node["spec"].get("taints", [])
        if not any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in taints):
            found.append(str(node["metadata"]["name"]))
    return sorted(found)
