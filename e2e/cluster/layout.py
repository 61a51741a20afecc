"""Names, folders and addresses of one cluster. Everything is derived from its name."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.errors import SetupError
from e2e.cluster.netns import NetNamespace

SERVICE_NETWORK = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""The Service ``kubernetes``; the API server itself listens there, on the namespace's loopback."""
POD_NETWORK = "10.88.0.0/16"
NODE_ADDRESS = "10.88.0.1"
"""Address of the bridge that pods hang on: the node's, and the API server's advertised one."""
BRIDGE = "e2e0"
"""Bridge and addresses are the same in every cluster: each has a network namespace of its own."""
BRIDGE_MAC = "02:00:0a:58:00:01"
"""Locally administered (IEEE 802: the second-lowest bit of the first byte)."""

NAME_PATTERN = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")
"""Short, because paths of unix sockets end at 107 bytes; and valid in a node's name."""


def state_root() -> Path:
    """Parent of all clusters' folders: ``$ALIQUOT_E2E_STATE``, default /var/lib/aliquot-e2e.

    Its file system must be one that overlayfs accepts as upper folder (not overlayfs itself).
    """
    return Path(os.environ.get("ALIQUOT_E2E_STATE") or "/var/lib/aliquot-e2e")


DRA_GATES = (
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
)
"""On by default from 1.36 on, known from 1.34 on."""


@dataclass(frozen=True)
class ClusterSpec:
    """What a cluster is made of.

    ``gates`` are feature gates for API server, controller manager, scheduler and kubelet;
    ``runtime_config`` switches API versions on or off at the API server.
    """

    name: str = "e2e"
    kubernetes: str = "1.37"
    gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: Mapping[str, bool] = field(
        default_factory=lambda: {
            "resource.k8s.io/v1alpha3": True,
            "resource.k8s.io/v1beta1": True,
            "resource.k8s.io/v1beta2": True,
        }
    )

    @classmethod
    def with_dra(cls, name: str, kubernetes: str) -> "ClusterSpec":
        """A cluster of this minor version in which everything is on that the driver can use."""
        old = kubernetes in ("1.34", "1.35")
        return cls(name, kubernetes, dict.fromkeys(DRA_GATES, True) if old else {})

    def __post_init__(self) -> None:
        """Raise SetupError for a name that cannot name a node, a folder and a cgroup."""
        if not NAME_PATTERN.fullmatch(self.name):
            wanted = "at most 20 of a-z, 0-9 and -, beginning with a letter"
            raise SetupError(f"cluster name {self.name!r}: wanted {wanted}")


@dataclass(frozen=True)
class Layout:
    """Where the parts of a cluster lie."""

    name: str
    root: Path

    @classmethod
    def of(cls, name: str) -> "Layout":
        """The layout of the cluster called ``name`` on this machine."""
        return cls(name, state_root() / name)

    @property
    def unique(self) -> str:
        """Name of the network namespace, the cgroup and the pod network."""
        return f"aliquot-{self.name}"

    @property
    def node_name(self) -> str:
        """Name of the Node object."""
        return f"{self.name}-node"

    @property
    def netns(self) -> NetNamespace:
        """The namespace in which everything runs."""
        return NetNamespace(self.unique)

    @property
    def logs(self) -> Path:
        """One log a program."""
        return self.root / "log"

    @property
    def pki(self) -> Path:
        """Certificates, keys and kubeconfigs."""
        return self.root / "pki"

    @property
    def cdi(self) -> Path:
        """The folder from which containerd reads CDI specs."""
        return self.root / "cdi"

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's folder (``/var/lib/kubelet`` elsewhere)."""
        return self.root / "kubelet"

    @property
    def containerd_socket(self) -> Path:
        """Socket of containerd. Must be absolute."""
        return self.root / "containerd.sock"

    @property
    def etcd(self) -> Path:
        """Data of etcd."""
        return self.root / "etcd"

    @property
    def cni(self) -> Path:
        """Configuration of the pod network."""
        return self.root / "cni"

    def folders(self) -> tuple[Path, ...]:
        """Every folder that must exist before the first program starts."""
        return (self.root, self.logs, self.pki, self.cdi, self.kubelet_root, self.etcd, self.cni)
