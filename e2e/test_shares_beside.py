"""Shares beside whole cards in the same pod, and shares that the daemon itself limits."""

import pytest

from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.driver_node import DRIVER
from e2e.sharing import (
    GIB,
    asking,
    ready_condition,
    share,
    sharing,
    start,
    status_of,
    told,
)
from e2e.workloads import claim_spec, exactly, opaque, pod, template

pytestmark = pytest.mark.timeout(400)

EQUAL = """
orphanGraceSeconds: 2
gpus: [{select: {all: true}, modes: [mps], shareSize: {memory: 20Gi, computePercent: 25}}]
"""


def test_a_share_and_a_whole_card_in_one_pod(cluster: LocalCluster, kube: Kube, namespace: str):
    with sharing(cluster, "h100-80gb:2") as driver:
        requests = share("14Gi", "25", "part"), exactly("whole")
        made = pod("p", namespace, templates={"c": "p"})
        made["spec"]["containers"] = [asking("one", "part"), asking("two", "whole")]
        kube.apply([template("p", namespace, claim_spec(*requests)), made])
        kube.wait_pod("p", namespace=namespace, timeout_s=120)
        one, two = told(kube, namespace, "p", "one"), told(kube, namespace, "p", "two")
        assert one["ALIQUOT_PART_0_UUID"] == driver.daemon().spec.gpu
        assert one["ALIQUOT_DEVICE_MEMORY_BYTES"] == str(14 * GIB)
        assert one["ASKED_PERCENT"] == "100.0"
        assert two["ALIQUOT_WHOLE_0_UUID"] != one["ALIQUOT_PART_0_UUID"]
        assert two["ALIQUOT_DEVICE_MEMORY_FRACTION"] == "1"
        assert "CUDA_MPS_PIPE_DIRECTORY" not in two
        assert two["ASKED_PERCENT"] == ""
        assert len(driver.modes()) == 1


def test_equal_shares_are_limited_by_the_daemon_itself(
    cluster: LocalCluster, kube: Kube, namespace: str
):
    demand = {
        "apiVersion": f"{DRIVER}/v1alpha1",
        "kind": "MpsConfig",
        "requireEnforcement": "mpsProcess",
    }
    with sharing(cluster, "h100-80gb:1", EQUAL) as driver:
        for name in ("a", "b", "c"):
            start(kube, namespace, name, share(), ask=True, config=[opaque(DRIVER, demand)])
        for name in ("a", "b", "c"):
            kube.wait_pod(name, namespace=namespace, timeout_s=120)
            env = told(kube, namespace, name)
            assert env["ASKED_PERCENT"] == "25.0"
            assert env["ASKED_MEMORY"] == "20G"
            assert env["ALIQUOT_DEVICE_MEMORY_BYTES"] == str(20 * GIB)
            status = status_of(kube, namespace, name)
            assert status["data"]["memoryLimit"] == "mpsProcess"
            assert "mpsProcess" in ready_condition(status)["message"]
        assert driver.daemon().spec.compute_percent == 25
