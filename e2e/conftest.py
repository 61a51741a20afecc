"""The session's cluster for end-to-end tests, and its logs in the report of a failure.

Fixture ``cluster`` (one a session) is the local cluster, whose programs and folders tests reach
into; it skips with the reason where no such cluster can run or another provider was asked for.
Fixture ``site`` is the cluster of any provider, for tests of the installed chart; a test with the
mark ``needs("…")`` is skipped where the provider cannot do that. Every test below this folder
carries the mark ``e2e``.
"""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.cluster.provider import PROVIDERS, chosen_spec
from e2e.driver_node import DriverNode
from e2e.partitions import remove_pods
from e2e.sharing import SharingNode
from e2e.sites.choose import provider_name, remote_site
from e2e.sites.helm import NAMESPACE
from e2e.sites.local import LocalSite
from e2e.sites.site import Site
from e2e.users import User, looking_often, start_user

HERE = Path(__file__).parent
LOGS = HERE / "out"
# After an outage or a refusal Kubernetes comes back with its own back-off, a minute and more.
TIMEOUT_S = 600
_running = pytest.StashKey[LocalCluster]()
_site = pytest.StashKey[Site]()
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
    if provider_name() != provider.name:
        pytest.skip(f"reaches into programs and folders of the node: not on {provider_name()}")
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


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The cluster of the provider that was asked for."""
    stash = request.config.stash
    name = provider_name()
    if name == "local":
        here: Site = LocalSite(request.getfixturevalue("cluster"))
    else:
        here = remote_site(name)
    stash[_site] = here
    yield here
    here.close()


@pytest.fixture(autouse=True)
def able(request: pytest.FixtureRequest) -> None:
    """Skip what the provider cannot do: ``@pytest.mark.needs("stop a node")``."""
    wanted = [str(word) for mark in request.node.iter_markers("needs") for word in mark.args]
    if wanted:
        here: Site = request.getfixturevalue("site")
        if missing := sorted(set(wanted) - here.abilities):
            pytest.skip(f"provider {here.name} cannot: {', '.join(missing)}")


@pytest.fixture
def room(site: Site, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own on the site, deleted afterwards with all that is in it."""
    with own_namespace(site.kube, request.node.name) as name:
        yield name
        site.kube.delete("Namespace", name)
        site.kube.wait_gone("Namespace", name, timeout_s=120)


@pytest.fixture
def kube(cluster: LocalCluster) -> Kube:
    """The administrator's client."""
    return cluster.kube


@pytest.fixture
def namespace(kube: Kube, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, ready for pods, deleted afterwards."""
    with own_namespace(kube, request.node.name) as name:
        yield name
        kube.delete("Namespace", name)


@pytest.fixture
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    """A plugin of the test's own that looks often; modules about other cards have their own."""
    with looking_often(cluster) as node:
        yield node


@pytest.fixture
def user(driver: DriverNode, namespace: str) -> User:
    """A running pod with a card."""
    return start_user(driver, namespace)


@pytest.fixture
def nothing_is_left(driver: SharingNode, kube: Kube, namespace: str) -> Iterator[None]:
    """After the test of shares its pods are removed, and the node must be as new."""
    yield
    remove_pods(kube)
    driver.wait_nothing_left()


@contextmanager
def own_namespace(kube: Kube, test: str) -> Iterator[str]:
    """Make a namespace that is ready for pods."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"generateName": "test-", "annotations": {"test": test}},
    }
    name: str = kube.create(manifest)["metadata"]["name"]
    kube.wait("ServiceAccount", "default", lambda _: True, namespace=name)
    yield name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the cluster's logs, and its pods, to the report of a failed test."""
    report = yield
    stash = item.config.stash
    if report.failed:
        stash[_failed] = True
        running, here = stash.get(_running, None), stash.get(_site, None)
        if running is not None:
            report.sections.extend(evidence(running))
        elif here is not None:
            report.sections.extend(here.evidence())
        if here is not None:
            report.sections.extend(installed_logs(here.kube))
    return report


def installed_logs(kube: Kube) -> Iterator[tuple[str, str]]:
    """The ends of what the pods of an installed chart said; they are gone after the tests."""
    with suppress(ClusterError, OSError):
        for pod in kube.list("Pod", NAMESPACE):
            name = pod["metadata"]["name"]
            with suppress(ClusterError, OSError):
                said = kube.kubectl("-n", NAMESPACE, "logs", "--tail=25", name)
                yield f"pod {name}", said


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
