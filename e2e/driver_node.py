"""Our plugin on the cluster's node, as its DaemonSet would run it but for the container: with the
real role, a token bound to the node, simulated cards, and the node's own folders."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driver.sim import control
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.node_account import NodeAccount, node_account
from e2e.cluster.polling import poll
from e2e.cluster.processes import ManagedProcess
from kubeletplugin.contract import ClaimRef
from kubeletplugin.testing.kubelet import Answer, PluginClient

DRIVER = "gpu.aliquot.dev"
MANIFESTS = Path(__file__).parent.parent / "deploy" / "manifests"
HTTP_PORT = 8080


def manifests(*names: str) -> str:
    """The text of files of ``deploy/manifests``."""
    return "\n---\n".join((MANIFESTS / f"{name}.yaml").read_text() for name in names)


@dataclass
class DriverNode:
    """The plugin's process, and what it leaves on the node."""

    cluster: LocalCluster
    account: NodeAccount
    process: ManagedProcess
    sim: Path
    name: str = DRIVER
    http_port: int = HTTP_PORT

    @property
    def kube(self) -> Kube:
        return self.cluster.kube

    @property
    def plugin_dir(self) -> Path:
        return self.cluster.kubelet_root / "plugins" / self.name

    @property
    def registry_dir(self) -> Path:
        return self.cluster.kubelet_root / "plugins_registry"

    def records(self) -> list[str]:
        """UIDs of the claims in the journal."""
        return sorted(path.stem for path in (self.plugin_dir / "claims").glob("*.json"))

    def cdi_files(self) -> list[Path]:
        """CDI files of our driver."""
        return sorted(self.cluster.cdi_dir.glob(f"{self.name}-claim_*.json"))

    def slices(self) -> list[Object]:
        """Our ResourceSlices, by name."""
        found = [
            item for item in self.kube.list("ResourceSlice") if item["spec"]["driver"] == self.name
        ]
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def devices(self, *, shared: bool = False) -> list[Object]:
        """Whole cards and partitions, or the ``shared`` devices."""
        return [
            device
            for item in self.slices()
            for device in item["spec"].get("devices", [])
            if bool(device.get("allowMultipleAllocations")) is shared
        ]

    def wait_published(self, count: int | None = None) -> None:
        """Until ResourceSlices with devices (exactly ``count`` ones) are there."""

        def there() -> bool:
            found = len(self.devices())
            return found == count if count is not None else found > 0

        poll(there, f"{count or 'any'} devices to be published")

    def wait_clean(self) -> None:
        """Until neither journal nor CDI folder holds anything."""
        poll(
            lambda: not self.records() and not self.cdi_files(),
            "journal and CDI folder to be empty",
            detail=lambda: f"left: {self.records()} {self.cdi_files()}",
        )

    def ready(self) -> dict[str, Any]:
        """What /readyz answers."""
        return self._http("readyz")

    def metrics(self) -> str:
        done = self.cluster.exec_in_netns(
            [sys.executable, "-c", _GET, f"http://127.0.0.1:{self.http_port}/metrics"]
        )
        return str(done.stdout)

    def _http(self, path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.http_port}/{path}"
        done = self.cluster.exec_in_netns([sys.executable, "-c", _GET, url], check=False)
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {"ok": False}
        return answer

    def is_ready(self) -> bool:
        return bool(self.ready()["ok"])

    def prepare(self, ref: ClaimRef) -> Answer:
        """What the plugin's socket answers, where the kubelet would add nothing."""
        return self.prepare_all([ref])[ref.uid]

    def prepare_all(self, refs: Sequence[ClaimRef]) -> dict[str, Answer]:
        """The same for several claims in one call; answers by UID."""
        return asyncio.run(self._prepare(refs))

    async def _prepare(self, refs: Sequence[ClaimRef]) -> dict[str, Answer]:
        async with self._client() as client:
            return await client.prepare(refs)

    def unprepare(self, ref: ClaimRef) -> str:
        """The error text of the plugin's socket, "" for success."""
        return asyncio.run(self._unprepare(ref))

    async def _unprepare(self, ref: ClaimRef) -> str:
        async with self._client() as client:
            return (await client.unprepare([ref]))[ref.uid]

    def _client(self) -> PluginClient:
        return PluginClient(self.name, self.plugin_dir / "dra.sock", ("v1.DRAPlugin",))

    def reboot(self) -> None:
        """What a reboot changes for the driver: the boot id; /var/run/cdi is emptied."""
        control.reboot(self.sim)
        for path in self.cdi_files():
            path.unlink()

    def events(self, reason: str) -> list[Object]:
        """Events of ours with this reason, in every namespace."""
        found = self.kube.request("GET", "/apis/events.k8s.io/v1/events")["items"]
        return [item for item in found if item["reason"] == reason]


_GET = (
    "import sys, urllib.request, urllib.error\n"
    "try: print(urllib.request.urlopen(sys.argv[1]).read().decode())\n"
    "except urllib.error.HTTPError as e: print(e.read().decode())\n"
)


def command(
    cluster: LocalCluster, account: NodeAccount, sim: Path, extra: Sequence[str]
) -> list[str]:
    """``aliquot node run`` for this node."""
    return [
        sys.executable,
        "-m",
        "cli.main",
        "node",
        "run",
        f"--node-name={cluster.node_name}",
        f"--kubeconfig={account.kubeconfig}",
        f"--kubelet-root={cluster.kubelet_root}",
        f"--cdi-dir={cluster.cdi_dir}",
        f"--simulate-root={sim}",
        *extra,
    ]


def start_driver(
    cluster: LocalCluster,
    *extra: str,
    name: str = "aliquot",
    simulate: str = "h100-80gb:8",
    http: str = f"127.0.0.1:{HTTP_PORT}",
) -> DriverNode:
    """Set up the account, classes and policy, and start the plugin; waits until it is Ready."""
    account = node_account(cluster, manifests("rbac"))
    cluster.kube.apply(manifests("classes", "own-node-slices"))
    sim = cluster.layout.root / f"sim-{simulate.replace(':', '-')}"
    options = [f"--simulate={simulate}", f"--http-address={http}", *extra]
    process = cluster.spawn(name, command(cluster, account, sim, options))
    node = DriverNode(cluster, account, process, sim)
    process.ready = node.is_ready
    process.start()
    return node


def other_driver(cluster: LocalCluster, name: str, port: int, *extra: str) -> DriverNode:
    """A plugin under a name of its own with cards of its own (two A30), beside the first one.

    It has its own folders and the administrator's rights: role and policy name the first driver.
    Not started.
    """
    account = node_account(cluster, manifests("rbac"))
    admin = replace(account, kubeconfig=cluster.kubeconfig, kube=cluster.kube)
    sim = cluster.layout.root / f"sim-{name}"
    options = [
        "--simulate=a30:2",
        f"--driver-name={name}",
        f"--http-address=127.0.0.1:{port}",
        *extra,
    ]
    process = cluster.spawn(name, command(cluster, admin, sim, options))
    node = DriverNode(cluster, admin, process, sim, name, port)
    process.ready = node.is_ready
    return node
