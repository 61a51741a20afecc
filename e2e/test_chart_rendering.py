"""The chart as helm renders it, without a cluster."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import build
from e2e.cluster.kube import Object, parse_documents
from e2e.cluster.targets import HELM
from e2e.driver_node import manifests
from e2e.sites.helm import HelmError, lint, merged, template

VALUES = Path(__file__).parent / "values"
FILES = ("default", "simulated", "everything")
EVICTING = {"gpus": [{"select": {"all": True}, "eviction": "overMemory"}]}
VERSIONS = ("1.34.4", "1.36.2", "1.36.3", "1.37.2")


@pytest.fixture(scope="module", autouse=True)
def helm() -> None:
    build.build(HELM)


def values(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    return found


def rendered(chosen: dict[str, Any], kubernetes: str = "1.37.2") -> dict[tuple[str, str], Object]:
    """Objects by kind and name."""
    found = parse_documents(template(chosen, kubernetes))
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


@pytest.mark.parametrize("name", FILES)
def test_lint_finds_nothing(name: str):
    assert "0 chart(s) failed" in lint(values(name))


@pytest.mark.parametrize("kubernetes", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_no_object_is_rendered_twice_and_all_have_our_labels(name: str, kubernetes: str):
    found = parse_documents(template(values(name), kubernetes))

    names = [(item["kind"], item["metadata"]["name"]) for item in found]
    assert len(set(names)) == len(names)
    for item in found:
        assert item["metadata"]["labels"]["app.kubernetes.io/name"] == "aliquot"


def test_what_the_other_tests_prove_is_what_the_chart_installs():
    """``deploy/manifests`` is applied by the tests of roles, policies and claims."""
    ours = rendered({"policy": EVICTING})

    for wanted in parse_documents(manifests("rbac", "own-node-slices", "classes")):
        found = ours[wanted["kind"], wanted["metadata"]["name"]]
        assert {**found, "metadata": wanted["metadata"]} == wanted


def test_pods_may_be_evicted_where_the_policy_says_so_alone():
    resources = [
        rule["resources"] for rule in rendered({})["ClusterRole", "aliquot-node"]["rules"]
    ]

    assert ["pods/eviction"] not in resources


def with_simulated_cards(**more: Any) -> dict[tuple[str, str], Object]:
    return rendered(merged({"simulate": "h100-80gb:8"}, more))


def pod_of(objects: dict[tuple[str, str], Object], name: str) -> Object:
    spec: Object = objects["DaemonSet", name]["spec"]["template"]["spec"]
    return spec


def test_a_simulated_node_needs_no_label_and_no_privilege():
    pod = pod_of(with_simulated_cards(), "aliquot-node")

    assert "affinity" not in pod
    security = pod["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["MKNOD"]}
    assert "privileged" not in security
    assert "hostPID" not in pod
    assert "hostNetwork" not in pod


def test_real_cards_are_looked_for_where_an_nvidia_device_is_labelled():
    pod = pod_of(rendered({}), "aliquot-node")

    (terms,) = pod["affinity"]["nodeAffinity"].values()
    keys = [e["key"] for term in terms["nodeSelectorTerms"] for e in term["matchExpressions"]]
    assert "feature.node.kubernetes.io/pci-10de.present" in keys


def test_the_supervisor_is_never_rolled_and_has_no_token():
    objects = rendered({})

    daemons = objects["DaemonSet", "aliquot-mps"]["spec"]
    assert daemons["updateStrategy"] == {"type": "OnDelete"}
    assert daemons["template"]["spec"]["automountServiceAccountToken"] is False


def test_without_shares_there_is_no_supervisor_and_no_class_for_it():
    names = {name for _, name in rendered({"shares": {"enabled": False}})}

    assert not names & {"aliquot-mps", "gpu-share", "gpu-timeslice"}


@pytest.mark.parametrize(
    ("kubernetes", "there"),
    [("1.34.4", True), ("1.35.4", True), ("1.36.2", True), ("1.36.3", False), ("1.37.2", False)],
)
def test_single_shares_are_asked_for_where_more_do_harm(kubernetes: str, there: bool):
    objects = rendered({}, kubernetes)

    assert (("ValidatingAdmissionPolicy", "aliquot-single-shares") in objects) is there


def test_a_vendors_suffix_does_not_change_the_version():
    assert ("ValidatingAdmissionPolicy", "aliquot-single-shares") not in rendered(
        {}, "1.36.3-gke.100"
    )


def test_values_reach_the_driver():
    objects = rendered(values("everything"))

    arguments = pod_of(objects, "aliquot-node")["containers"][0]["args"]
    for wanted in (
        "--driver-name=gpu.example.com",
        "--kubelet-root=/var/lib/k0s/kubelet",
        "--plugin-dir=/var/lib/k0s/kubelet/plugins/ours",
        "--cdi-dir=/etc/cdi",
        "--host-driver-root=/run/nvidia/driver",
        "--nvidia-ctk=/usr/local/nvidia/toolkit/nvidia-ctk",
        "--http-address=:9400",
        "--claim-cache",
        "--health-interval=10",
    ):
        assert wanted in arguments
    pod = pod_of(objects, "aliquot-node")
    (toolkit,) = (each for each in pod["volumes"] if each["name"] == "toolkit")
    mounts = {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert toolkit["hostPath"]["path"] == mounts["toolkit"]["mountPath"] == "/usr/local/nvidia"
    watches = objects["ClusterRole", "aliquot-node"]["rules"][1]["verbs"]
    assert watches == ["get", "list", "watch"], "the claim cache watches"
    partition = objects["DeviceClass", "mig-1g.10gb-me"]["spec"]
    assert partition["extendedResourceName"] == "nvidia.com/mig-1g.10gb.me"


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"imgae": {}}, "'imgae'"),
        ({"plugin": {"logLevle": "info"}}, "'logLevle'"),
        ({"simulate": "h100:8"}, "/simulate"),
        ({"simulate": "h100-80gb:0"}, "/simulate"),
        ({"simulate": "h100-80gb:513"}, "/simulate"),
        ({"driverName": ""}, "/driverName"),
        ({"driverName": "Gpu_1"}, "/driverName"),
        ({"kubeletRoot": "var/lib/kubelet"}, "/kubeletRoot"),
        ({"nvidiaToolkitDir": "usr/local"}, "/nvidiaToolkitDir"),
        ({"nvidiaToolkitDir": "/toolkit"}, "/nvidiaToolkitDir"),
        ({"admission": {"singleShares": "sometimes"}}, "/admission/singleShares"),
        ({"classes": {"migProfiles": ["1g10gb"]}}, "/classes/migProfiles/0"),
        ({"plugin": {"httpPort": "8080"}}, "/plugin/httpPort"),
        ({"shares": {"runDir": "/run/" + "long" * 10}}, "/shares/runDir"),
    ],
)
def test_a_bad_value_is_refused_by_name(bad: dict[str, Any], named: str):
    with pytest.raises(HelmError, match="schema") as caught:
        template(bad)

    assert named in str(caught.value)


def test_a_cluster_that_is_too_old_is_refused():
    with pytest.raises(HelmError, match=r"1\.34"):
        template({}, "1.33.9")
