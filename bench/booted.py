"""The cluster of a bench and the drivers on it, all with the same rights and kind of token."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.client import Target
from e2e.cluster import build
from e2e.cluster.layout import ClusterSpec
from e2e.cluster.local import LocalCluster
from e2e.cluster.node_account import NAMESPACE, NodeAccount, node_account
from e2e.cluster.polling import poll
from e2e.cluster.processes import ManagedProcess
from e2e.cluster.targets import EXAMPLE_DRIVER
from e2e.driver_node import DRIVER, command

GO_DEVICES_MOST = 128  # it publishes one ResourceSlice, which holds no more
OURS, CACHED, GO = DRIVER, f"cached.{DRIVER}", "gpu.example.com"
_ACCOUNT = "bench-node"


@dataclass
class Bed:
    """A running cluster and the account that drivers use."""

    cluster: LocalCluster
    account: NodeAccount

    def sim(self, driver: str, simulate: str) -> Path:
        """Root of the simulated hardware of one driver; other cards need another one."""
        return self.cluster.layout.root / f"sim-{driver}-{simulate.replace(':', '-')}"

    def socket(self, driver: str) -> Path:
        return self.cluster.kubelet_root / "plugins" / driver / "dra.sock"

    def target(self, label: str, driver: str) -> Target:
        return Target(label, driver, self.socket(driver))

    def ours(self, driver: str, simulate: str, *extra: str) -> ManagedProcess:
        """Our plugin under a driver name, not started. It offers whole cards alone unless
        ``extra`` names another policy."""
        if not any(each.startswith("--config") for each in extra):
            policy = self.cluster.layout.root / "bench-whole.yaml"
            policy.write_text("gpus: [{select: {all: true}, modes: [gpu]}]\n")
            extra = (*extra, f"--config={policy}")
        options = [f"--driver-name={driver}", f"--simulate={simulate}", *extra]
        if not any(each.startswith("--http-address") for each in extra):
            options.append("--http-address=")
        return self.cluster.spawn(
            f"bench-{driver}",
            command(self.cluster, self.account, self.sim(driver, simulate), options),
        )

    def go(self, devices: int) -> ManagedProcess:
        """The Go example driver, its client's limits raised (5 a second are its default)."""
        kubelet = self.cluster.kubelet_root
        program = build.binaries(EXAMPLE_DRIVER) / "dra-example-kubeletplugin"
        argv = [
            str(program),
            f"--kubeconfig={self.account.kubeconfig}",
            f"--node-name={self.cluster.node_name}",
            f"--num-devices={devices}",
            f"--cdi-root={self.cluster.cdi_dir}",
            f"--kubelet-plugins-directory-path={kubelet / 'plugins'}",
            f"--kubelet-registrar-directory-path={kubelet / 'plugins_registry'}",
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
        ]
        return self.cluster.spawn(f"bench-{GO}", argv)

    def devices(self, driver: str) -> int:
        """How many devices a driver has published."""
        found = self.cluster.kube.list("ResourceSlice", fields=f"spec.driver={driver}")
        return sum(len(each["spec"].get("devices") or ()) for each in found)

    @contextmanager
    def running(self, drivers: Sequence[tuple[ManagedProcess, str, int]]) -> Iterator[None]:
        """Processes of drivers, each until it has published so many devices."""
        try:
            for process, _, _ in drivers:
                process.start()
            for process, driver, count in drivers:
                poll(
                    lambda d=driver, n=count: self.devices(d) == n,  # type: ignore[misc]
                    f"{count} devices of {driver}",
                    detail=process.tail,
                )
            yield
        finally:
            for process, _, _ in drivers:
                process.stop()


@contextmanager
def bed() -> Iterator[Bed]:
    """Boot a cluster; ``$ALIQUOT_E2E_NAME`` names it. Missing programs are built first."""
    build.build_all(extra=[EXAMPLE_DRIVER])
    name = os.environ.get("ALIQUOT_E2E_NAME") or "bench"
    with LocalCluster(ClusterSpec(name=name)) as cluster:
        account = node_account(cluster, json.dumps(_rbac()), name=_ACCOUNT)
        yield Bed(cluster, account)


def _rbac() -> dict[str, object]:
    """One role for every driver of a bench: the union of what they need."""
    group = "resource.k8s.io"
    write = ["get", "list", "watch", "create", "update", "patch", "delete"]
    reader = {"apiGroups": [group], "resources": ["resourceclaims"]}
    drivers = {"apiGroups": [group], "resources": ["resourceclaims/driver"]}
    rules = [
        {"apiGroups": [group], "resources": ["resourceslices"], "verbs": write},
        {**reader, "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": [group],
            "resources": ["resourceclaims/status"],
            "verbs": ["patch", "update"],
        },
        {
            **drivers,
            "resourceNames": [OURS, CACHED, GO],
            "verbs": ["associated-node:patch", "associated-node:update"],
        },
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ]
    api, meta = "rbac.authorization.k8s.io/v1", {"name": _ACCOUNT}
    role = {"apiVersion": api, "kind": "ClusterRole", "metadata": meta, "rules": rules}
    binding = {
        "apiVersion": api,
        "kind": "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": _ACCOUNT,
        },
        "subjects": [{"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": NAMESPACE}],
    }
    return {"apiVersion": "v1", "kind": "List", "items": [role, binding]}
