"""The cluster itself: what every other end-to-end test takes for granted."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import cleanup
from e2e.cluster.errors import ClusterInUseError, KubeError
from e2e.cluster.images import BUSYBOX
from e2e.cluster.kube import Kube, Object, parse_feature_gates
from e2e.cluster.layout import BRIDGE, ClusterSpec, Layout
from e2e.cluster.local import LocalCluster
from e2e.cluster.node_account import node_account
from e2e.cluster.polling import poll
from e2e.hand_plugin import HandPlugin

DRIVER = "hand.aliquot.dev"

RBAC = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: hand-made-node}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: hand-made-node}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hand-made-node}
subjects: [{kind: ServiceAccount, name: hand-made, namespace: aliquot-system}]
"""


def pod(name: str, namespace: str, script: str, claim: str = "") -> Object:
    """A busybox pod that runs a shell script once, with a claim if one is named."""
    container: Object = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    if claim:
        spec["resourceClaims"] = [{"name": "device", "resourceClaimName": claim}]
        container["resources"] = {"claims": [{"name": "device"}]}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_node_is_ready_and_runs_the_version_that_was_built(cluster: LocalCluster):
    node = cluster.wait_node_ready()

    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.2"
    assert cluster.kube.request("GET", "/version")["gitVersion"] == "v1.37.2"


def test_gates_for_sharing_and_partitions_are_on(kube: Kube):
    gates = parse_feature_gates(kube.raw("/metrics").text())

    assert gates["DRAConsumableCapacity"]
    assert gates["DRAPartitionableDevices"]


def test_a_pod_runs_and_its_output_is_read(kube: Kube, namespace: str):
    kube.apply(pod("hello", namespace, "echo hello from $(hostname)"))

    kube.wait_pod("hello", "Succeeded", namespace)

    assert kube.logs("hello", namespace=namespace) == "hello from hello\n"


def test_a_command_runs_in_a_container(kube: Kube, namespace: str):
    kube.apply(pod("sleeper", namespace, "sleep 3600"))
    kube.wait_pod("sleeper", namespace=namespace)

    assert kube.exec("sleeper", ["echo", "inside"], namespace=namespace) == "inside\n"


def test_a_pod_reaches_the_api_server_at_the_service_address(kube: Kube, namespace: str):
    kube.apply(pod("caller", namespace, "nc -w 5 $KUBERNETES_SERVICE_HOST 443 </dev/null"))

    kube.wait_pod("caller", "Succeeded", namespace)


def test_the_bridge_keeps_its_mac_whoever_joins(cluster: LocalCluster):
    def told(device: str) -> str:
        argv = cluster.netns.argv(["ip", "-json", "link", "show", device])
        found: list[dict[str, str]] = json.loads(subprocess.check_output(argv))
        return found[0]["address"]

    before = told(BRIDGE)
    ip = cluster.netns.ip
    ip("link", "add", "lowest", "address", "00:00:0a:58:00:01", "type", "veth")
    try:
        ip("link", "set", "lowest", "master", BRIDGE)
        assert told("lowest") < before
        assert told(BRIDGE) == before
    finally:
        ip("link", "delete", "lowest")


def test_an_absent_object_is_an_error_that_says_so(kube: Kube, namespace: str):
    with pytest.raises(KubeError, match='pods "nobody" not found') as caught:
        kube.get("Pod", "nobody", namespace)

    assert caught.value.status == 404


def hand_made(node: str, namespace: str) -> list[Object]:
    """One device written by hand, its class, and a claim for it."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    request = {"name": "gpu", "exactly": {"deviceClassName": "hand"}}
    specs: list[tuple[str, str, Object]] = [
        (
            "ResourceSlice",
            "hand",
            {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "one"}],
            },
        ),
        ("DeviceClass", "hand", {"selectors": [selector]}),
        ("ResourceClaim", "mine", {"devices": {"requests": [request]}}),
    ]
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace}
            if kind == "ResourceClaim"
            else {"name": name},
            "spec": spec,
        }
        for kind, name, spec in specs
    ]


@pytest.fixture
def claim(cluster: LocalCluster, namespace: str) -> Iterator[str]:
    """Name of a claim for the hand-made device."""
    cluster.kube.apply(hand_made(cluster.node_name, namespace))
    yield "mine"
    cluster.kube.delete("ResourceSlice", "hand")
    cluster.kube.delete("DeviceClass", "hand")


def test_a_claim_is_allocated_and_waits_for_a_driver_that_is_not_there(
    kube: Kube, namespace: str, claim: str
):
    kube.apply(pod("waiting", namespace, "true", claim))
    poll(
        lambda: any("not registered" in e["message"] for e in kube.events("waiting", namespace)),
        "the kubelet to miss the driver",
    )

    allocation = kube.get("ResourceClaim", claim, namespace)["status"]["allocation"]
    assert allocation["devices"]["results"][0]["device"] == "one"
    kube.delete("Pod", "waiting", namespace, grace_s=0)


def test_a_container_gets_the_edits_of_the_cdi_device_that_a_plugin_names(
    cluster: LocalCluster, namespace: str, claim: str
):
    device = {"name": "one", "containerEdits": {"env": ["HAND_MADE=yes"]}}
    spec = {"cdiVersion": "0.5.0", "kind": f"{DRIVER}/claim", "devices": [device]}
    (cluster.cdi_dir / "hand.json").write_text(json.dumps(spec), encoding="utf-8")

    with HandPlugin(cluster.kubelet_root, DRIVER, f"{DRIVER}/claim=one") as plugin:
        cluster.kube.apply(pod("claimer", namespace, "env", claim))
        cluster.kube.wait_pod("claimer", "Succeeded", namespace)
        seen = cluster.kube.logs("claimer", namespace=namespace)
        poll(lambda: not plugin.prepared, "the kubelet to unprepare the claim")

    assert "HAND_MADE=yes" in seen.splitlines()


def test_the_node_account_holds_a_token_that_names_the_node(cluster: LocalCluster):
    account = node_account(cluster, RBAC, "hand-made")

    node = account.claims()["kubernetes.io"]["node"]
    assert node["name"] == cluster.node_name
    assert account.kube.get("Node", cluster.node_name)["metadata"]["uid"] == node["uid"]
    with pytest.raises(KubeError, match="forbidden"):
        account.kube.list("Secret")


def test_pods_outlive_an_api_server_outage_and_a_kubelet_crash(
    cluster: LocalCluster, namespace: str
):
    kube = cluster.kube
    kube.apply(pod("survivor", namespace, "sleep 3600"))
    before = kube.wait_pod("survivor", namespace=namespace)

    with cluster.api_down():
        assert not kube.healthy()
        cluster.kill_kubelet()
    cluster.restart_kubelet()
    cluster.wait_node_ready()

    after = kube.wait_pod("survivor", namespace=namespace)
    started = [p["status"]["containerStatuses"][0]["state"]["running"] for p in (before, after)]
    assert started[0] == started[1]


def test_a_name_that_another_process_holds_is_refused(cluster: LocalCluster):
    with pytest.raises(ClusterInUseError, match="ALIQUOT_E2E_NAME"):
        LocalCluster(cluster.spec).start()

    assert cluster.kube.healthy()


CRASHING = """
import os, signal, sys
from e2e.cluster.layout import ClusterSpec
from e2e.cluster.local import LocalCluster
from e2e.test_cluster import pod
cluster = LocalCluster(ClusterSpec(name=sys.argv[1]))
cluster.start()
cluster.kube.apply(pod("left", "default", "sleep 3600"))
cluster.kube.wait_pod("left")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(300)  # two clusters, one after the other, beside a third
def test_a_second_cluster_starts_beside_and_clears_what_a_killed_process_left(
    cluster: LocalCluster,
):
    name = f"{cluster.spec.name}-b"
    layout = Layout.of(name)
    root = Path(__file__).parent.parent
    killed = subprocess.run([sys.executable, "-c", CRASHING, name], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = cleanup.processes(layout)
    assert len(left) >= 7

    with LocalCluster(ClusterSpec(name=name)) as second:
        assert second.kube.find("Pod", "left") is None
        assert not left & cleanup.processes(layout)
        assert cluster.kube.healthy()

    assert not cleanup.exists(layout)
    assert cleanup.mounts_below(Path("/proc/mounts").read_text(), layout.root) == []
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{layout.unique}"))
