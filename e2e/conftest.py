"""The session's cluster for end-to-end tests, and its logs in the report of a failure.

Fixture ``cluster`` (one a session) skips with the reason where no cluster can run. Every test
below this folder carries the mark ``e2e``.
"""

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.cluster.provider import PROVIDERS, chosen_spec

HERE = Path(__file__).parent
LOGS = HERE / "out"
# After an outage or a refusal Kubernetes comes back with its own back-off, a minute and more.
TIMEOUT_S = 600
_running = pytest.StashKey[LocalCluster]()
_failed = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies below this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A running cluster with one Ready node; shared, so tests use names of their own."""
    provider = PROVIDERS["local"]
    if reason := provider.unavailable():
        pytest.skip(reason)
    spec = chosen_spec()
    stash = request.config.stash
    with provider.cluster(spec) as running:
        stash[_running] = running
        try:
            yield running
        finally:
            del stash[_running]
            if stash.get(_failed, False):
                running.save_logs(LOGS / spec.name)


@pytest.fixture
def kube(cluster: LocalCluster) -> Kube:
    """The administrator's client."""
    return cluster.kube


@pytest.fixture
def namespace(kube: Kube, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, ready for pods, deleted afterwards."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"generateName": "test-", "annotations": {"test": request.node.name}},
    }
    name: str = kube.create(manifest)["metadata"]["name"]
    kube.wait("ServiceAccount", "default", lambda _: True, namespace=name)
    yield name
    kube.delete("Namespace", name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the cluster's logs, and its pods, to the report of a failed test."""
    report = yield
    stash = item.config.stash
    if report.failed:
        stash[_failed] = True
        running = stash.get(_running, None)
        if running is not None:
            report.sections.extend(evidence(running))
    return report


def evidence(running: LocalCluster) -> Iterator[tuple[str, str]]:
    """Sections for a report: pods that are not well, then every program's last lines."""
    try:
        yield "pods", json.dumps(_pod_states(running.kube), indent=1)
    except (ClusterError, OSError) as error:
        yield "pods", f"not readable: {error}"
    for process in running.processes:
        state = "runs" if process.running else "does not run"
        yield f"{process.name} ({state})", process.tail(15)


def _pod_states(kube: Kube) -> list[dict[str, Any]]:
    pods = kube.request("GET", "/api/v1/pods")["items"]
    return [
        {
            "pod": f"{pod['metadata']['namespace']}/{pod['metadata']['name']}",
            "phase": pod["status"].get("phase"),
            "containers": [c["state"] for c in pod["status"].get("containerStatuses", [])],
        }
        for pod in pods
    ]
