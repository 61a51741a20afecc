"""What the harness reads from the kernel, the API server and tokens."""

import base64
import json
from pathlib import Path

import pytest

from e2e.cluster.cgroups import parse_mounts
from e2e.cluster.cleanup import mounts_below, shim_socket
from e2e.cluster.errors import KubeError
from e2e.cluster.kube import Resource, parse_discovery, parse_documents, parse_feature_gates
from e2e.cluster.node_account import holder_pod, token_claims
from e2e.cluster.processes import tail
from e2e.cluster.transport import Reply

V1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"


def test_hybrid_hosts_use_the_v1_hierarchies_and_clear_both():
    mounts = parse_mounts(V1 + V2 + "proc /proc proc rw 0 0\n")

    assert mounts.with_controllers == (Path("/sys/fs/cgroup/cpu"),)
    assert mounts.v2 == (Path("/sys/fs/cgroup/unified"),)


def test_a_host_with_v2_alone_uses_it():
    assert parse_mounts(V2).with_controllers == (Path("/sys/fs/cgroup/unified"),)


def test_mounts_are_undone_last_first_and_only_our_own():
    text = "\n".join(
        f"x {point} tmpfs rw 0 0" for point in ("/s/a", "/s/a/b", "/s/ab", "/s", "/s/a/with\\040x")
    )

    assert mounts_below(text, Path("/s/a")) == ["/s/a/with x", "/s/a/b", "/s/a"]


def test_the_socket_of_a_shim_is_found():
    good = json.dumps({"address": "unix:///run/containerd/s/0a", "version": 3})

    assert shim_socket(good) == Path("/run/containerd/s/0a")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"address": "vsock://3:1"}'])
def test_a_shim_without_a_readable_socket_has_none(text):
    assert shim_socket(text) is None


def resource(kind: str, name: str, scope: str) -> dict[str, object]:
    return {"resource": name, "responseKind": {"kind": kind}, "scope": scope}


def test_discovery_lists_kinds_in_the_order_of_the_server():
    claims = [resource("ResourceClaim", "resourceclaims", "Namespaced")]
    group = {
        "metadata": {"name": "resource.k8s.io"},
        "versions": [
            {"version": "v1", "resources": claims},
            {"version": "v1beta1", "resources": claims},
        ],
    }
    core = {
        "metadata": {},
        "versions": [{"version": "v1", "resources": [resource("Node", "nodes", "Cluster")]}],
    }

    found = parse_discovery({"items": [core, group]})

    assert [entry.api_version for entry in found] == [
        "v1",
        "resource.k8s.io/v1",
        "resource.k8s.io/v1beta1",
    ]
    assert found[0].path("ignored", "n1") == "/api/v1/nodes/n1"
    assert found[1].path("x") == "/apis/resource.k8s.io/v1/namespaces/x/resourceclaims"


def test_paths_of_namespaced_objects_name_the_namespace():
    pods = Resource("v1", "Pod", "pods", namespaced=True)

    assert pods.path("x", "p") == "/api/v1/namespaces/x/pods/p"


def test_yaml_streams_are_opened_with_their_lists():
    text = "---\n---\nkind: A\n---\nkind: List\nitems: [{kind: B}, {kind: C}]\n"

    assert [item["kind"] for item in parse_documents(text)] == ["A", "B", "C"]


def test_gates_are_read_from_metrics():
    text = (
        "# TYPE kubernetes_feature_enabled gauge\n"
        'kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="BETA"} 1\n'
        'kubernetes_feature_enabled{name="DRAResourcePoolStatus",stage="ALPHA"} 0\n'
        "other_metric 1\n"
    )

    gates = parse_feature_gates(text)

    assert gates == {"DRAConsumableCapacity": True, "DRAResourcePoolStatus": False}


def test_claims_of_a_token_are_read_whatever_the_padding():
    for name in ("a", "ab", "abc", "abcd"):
        payload = base64.urlsafe_b64encode(json.dumps({"sub": name}).encode()).decode()
        assert token_claims(f"header.{payload.rstrip('=')}.signature") == {"sub": name}


def test_the_holder_pod_is_assigned_by_hand_so_that_its_token_names_the_node():
    pod = holder_pod("p", "n1", "aliquot-node", "aliquot-system")

    assert pod["spec"]["nodeName"] == "n1"
    assert pod["spec"]["serviceAccountName"] == "aliquot-node"


def test_an_error_status_carries_the_servers_reason():
    body = b'{"kind": "Status", "reason": "NotFound", "message": "pods \\"x\\" not found"}'

    with pytest.raises(KubeError, match='404 NotFound: pods "x" not found') as caught:
        Reply(404, body).json()

    assert caught.value.reason == "NotFound"


def test_an_error_that_is_no_status_is_told_as_it_is():
    with pytest.raises(KubeError, match="502 Bad Gateway: upstream away"):
        Reply(502, b"upstream away").text()


def test_the_end_of_a_log_is_read_and_an_absent_one_is_empty(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))

    assert tail(log, 2) == "line 99998\nline 99999"
    assert tail(tmp_path / "none.log") == ""
