"""Configuration files and command lines of the programs: values in, text out.

The flags that matter, and why, are said where they stand. All addresses are inside the
cluster's network namespace.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.images import PAUSE
from e2e.cluster.layout import (
    BRIDGE,
    NODE_ADDRESS,
    POD_NETWORK,
    SERVICE_ADDRESS,
    SERVICE_NETWORK,
    ClusterSpec,
    Layout,
)

ETCD_URL = "http://127.0.0.1:2379"
SERVER = f"https://{SERVICE_ADDRESS}:443"
SCHEDULER_PORT = 10259
CONTROLLER_MANAGER_PORT = 10257
KUBELET_HEALTH_PORT = 10248


def switches(values: Mapping[str, bool]) -> str:
    """``a=true,b=false``, the form of --feature-gates and --runtime-config."""
    return ",".join(f"{key}={str(value).lower()}" for key, value in sorted(values.items()))


def _optional(flag: str, values: Mapping[str, bool]) -> list[str]:
    return [f"{flag}={switches(values)}"] if values else []


def etcd_arguments(layout: Layout) -> list[str]:
    """Arguments of etcd. Nothing survives a test, so nothing is synced to disk."""
    return [
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver_arguments(layout: Layout, spec: ClusterSpec) -> list[str]:
    """Arguments of kube-apiserver.

    It advertises the bridge's address, since a loopback address is refused ("may not be in the
    loopback range"). Aggregator routing makes it dial endpoints: webhooks behind a Service work
    without kube-proxy. The kubelet flags are for logs and exec.
    """
    pki = layout.pki
    return [
        f"--etcd-servers={ETCD_URL}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--advertise-address={NODE_ADDRESS}",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--service-account-key-file={pki / 'sa.crt'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        "--enable-aggregator-routing",
        f"--requestheader-client-ca-file={pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        *_optional("--runtime-config", spec.runtime_config),
        *_optional("--feature-gates", spec.gates),
    ]


def _client_arguments(kubeconfig: Path, spec: ClusterSpec) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        *_optional("--feature-gates", spec.gates),
    ]


def controller_manager_arguments(layout: Layout, spec: ClusterSpec) -> list[str]:
    """Arguments of kube-controller-manager.

    With its default of 20 requests a second, making its controllers' accounts takes 5 s, and
    the default service account, without which no pod is admitted, comes that late.
    """
    return [
        *_client_arguments(layout.pki / "controller-manager.kubeconfig", spec),
        f"--service-account-private-key-file={layout.pki / 'sa.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        "--use-service-account-credentials",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def scheduler_arguments(layout: Layout, spec: ClusterSpec) -> list[str]:
    """Arguments of kube-scheduler."""
    return _client_arguments(layout.pki / "scheduler.kubeconfig", spec)


def kubelet_arguments(layout: Layout) -> list[str]:
    """Arguments of the kubelet; the rest is in its configuration file."""
    return [
        f"--config={layout.root / 'kubelet.json'}",
        f"--kubeconfig={layout.pki / 'node.kubeconfig'}",
        f"--hostname-override={layout.node_name}",
        f"--node-ip={NODE_ADDRESS}",
        f"--root-dir={layout.kubelet_root}",
        f"--cert-dir={layout.kubelet_root / 'pki'}",
        "-v=2",
    ]


def kubelet_config(layout: Layout, spec: ClusterSpec) -> dict[str, Any]:
    """KubeletConfiguration: cgroup v1 allowed, no eviction for a full disk, own folders."""
    pki = layout.pki
    x509 = {"clientCAFile": str(pki / "ca.crt")}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.unique}",
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": x509,
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "node.crt"),
        "tlsPrivateKeyFile": str(pki / "node.key"),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "failSwapOn": False,
        "podLogsDir": str(layout.root / "podlogs"),
        "volumePluginDir": str(layout.root / "volumeplugins"),
        "nodeStatusUpdateFrequency": "5s",
        "healthzPort": KUBELET_HEALTH_PORT,
        "featureGates": dict(spec.gates),
    }


def containerd_config(layout: Layout, runc: str, cni_folder: Path) -> str:
    """containerd's configuration, version 3.

    ``restrict_oom_score_adj``: without CAP_SYS_RESOURCE runc otherwise dies with "can't get
    final child's PID from pipe: EOF". Pods' network namespaces are mounted below the state
    folder, so that they are found and removed with it.
    """
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    return f"""version = 3
root = "{layout.root}/containerd/root"
state = "{layout.root}/containerd/state"
[grpc]
  address = "{layout.containerd_socket}"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE}"
[{runtime}]
  enable_cdi = true
  cdi_spec_dirs = ["{layout.cdi}"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [{runtime}.cni]
    bin_dirs = ["{cni_folder}"]
    conf_dir = "{layout.cni}"
    use_internal_loopback = true
  [{runtime}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{runtime}.containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      Root = "{layout.root}/runc"
      SystemdCgroup = false
"""


def cni_conflist(layout: Layout) -> str:
    """The pod network: a bridge, addresses counted in a folder of the cluster."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_NETWORK}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(layout.root / "ipam"),
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "0.4.0", "name": layout.unique, "plugins": [bridge]})
