"""Pods with partitions come and go while kubelet and plugin are killed: nothing may stay."""

import random
from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.cut_churn import CutChurn
from e2e.driver_node import DriverNode
from e2e.partitions import cutting, instances, wait_no_instances

pytestmark = pytest.mark.timeout(600)

SECONDS = 60  # `make soak` has ten minutes of it


@pytest.fixture
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    with cutting(cluster, "h100-80gb:2") as node:
        yield node


def test_deaths_of_kubelet_and_plugin_leave_nothing_behind(
    cluster: LocalCluster, kube: Kube, namespace: str, driver: DriverNode
):
    churn = CutChurn(cluster, driver, namespace, random.Random(7))  # noqa: S311 - reproducible
    churn.run(SECONDS)
    assert (churn.started > 10, churn.kills > 2) == (True, True)
    poll(
        lambda: not kube.list("Pod", namespace),
        "no pod to be stuck",
        timeout_s=180,
        detail=lambda: str([each["metadata"]["name"] for each in kube.list("Pod", namespace)]),
    )
    driver.wait_clean()
    wait_no_instances(driver)
    assert instances(driver.sim) == []
