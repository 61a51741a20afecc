"""Pods with partitions come and go while kubelet and plugin are killed: nothing may stay."""

import random
import time
from collections.abc import Iterator

import pytest

from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DriverNode
from e2e.partitions import cutting, instances, part, wait_no_instances
from e2e.workloads import claim_spec, exactly, pod, template

pytestmark = pytest.mark.timeout(600)

SECONDS = 60
KINDS = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "whole")


@pytest.fixture
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    with cutting(cluster, "h100-80gb:2") as node:
        yield node


def test_deaths_of_kubelet_and_plugin_leave_nothing_behind(
    cluster: LocalCluster, kube: Kube, namespace: str, driver: DriverNode
):
    rng = random.Random(7)  # noqa: S311 - a reproducible order
    for kind in KINDS:
        request = exactly() if kind == "whole" else part(kind)
        kube.apply([template(kind.replace(".", "-"), namespace, claim_spec(request))])
    alive: list[str] = []
    started = kills = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if len(alive) < 10 and rng.random() < 0.7:
            name = f"p{started}"
            kind = rng.choice(KINDS).replace(".", "-")
            kube.apply([pod(name, namespace, templates={"c": kind})])
            alive.append(name)
            started += 1
        elif alive:
            kube.delete("Pod", alive.pop(rng.randrange(len(alive))), namespace, grace_s=1)
        if rng.random() < 0.15:
            victim = rng.choice((driver.process, cluster.kubelet))
            victim.kill()
            victim.start()
            kills += 1
        time.sleep(0.3)
    assert (started > 10, kills > 2) == (True, True)
    poll(driver.is_ready, "the plugin to be Ready", timeout_s=120)
    for name in alive:
        kube.delete("Pod", name, namespace, grace_s=1)
    poll(
        lambda: not kube.list("Pod", namespace),
        "no pod to be stuck",
        timeout_s=180,
        detail=lambda: str([each["metadata"]["name"] for each in kube.list("Pod", namespace)]),
    )
    driver.wait_clean()
    wait_no_instances(driver)
    assert instances(driver.sim) == []
