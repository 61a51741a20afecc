"""What an administrator sets for the node plugin, as one value."""

from dataclasses import dataclass
from pathlib import Path

from mps.settings import Settings as Supervisor

DEFAULT_DRIVER = "gpu.aliquot.dev"


@dataclass(frozen=True)  # no slots: the CLI reads the defaults off the class
class Settings:
    """Defaults are those of ``aliquot node run``; paths are as this process sees them."""

    node_name: str
    driver_name: str = DEFAULT_DRIVER
    kubelet_root: Path = Path("/var/lib/kubelet")
    plugin_dir: Path | None = None  # None: <kubelet root>/plugins/<driver name>
    registry_dir: Path | None = None  # None: <kubelet root>/plugins_registry
    cdi_dir: Path = Path("/var/run/cdi")
    driver_root: Path = Path("/")  # where the NVIDIA driver's files are
    host_driver_root: Path | None = None  # the same on the host; None: as driver_root
    nvidia_ctk: Path | None = None  # apart from the driver; None: in a program folder of its root
    cgroup_root: Path = Path("/sys/fs/cgroup")  # the host's, where the kubelet's pods are
    policy_file: Path | None = None
    kubeconfig: str | None = None  # None: the service account, else the usual places
    simulate: str | None = None  # "h100-80gb:8"
    simulate_root: Path = Path("/var/lib/aliquot/sim")
    mps_socket: Path | None = Supervisor().socket_path  # None: no shares by MPS
    http_address: str = ":8080"  # "": no health and metrics endpoint
    claim_cache: bool = False
    instance: str | None = None  # the pod's UID, for sockets of its own
    watchdog_interval_s: float = 10.0  # how often the use of shares is looked at
    health_interval_s: float = 5.0  # the kubelet's health stream and taints are this fresh
    refresh_interval_s: float = 30.0  # cards that come and go, policy file
    reconcile_interval_s: float = 60.0

    @property
    def plugin_folder(self) -> Path:
        return self.plugin_dir or self.kubelet_root / "plugins" / self.driver_name

    @property
    def journal_dir(self) -> Path:
        """One file a claim; beside the sockets, so that it lives as long as the kubelet's own."""
        return self.plugin_folder / "claims"

    @property
    def known_file(self) -> Path:
        return self.plugin_folder / "node" / "cards.json"

    @property
    def root(self) -> Path:
        """Below which /dev, /sys, /proc and the driver's files are read."""
        return self.simulate_root if self.simulate else self.driver_root
