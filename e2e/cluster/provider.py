"""What the tests need of a cluster, whoever provides it.

``local`` builds and boots one here. A provider answers why it cannot, so that tests are skipped
with the reason instead of failing.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from e2e.cluster import build
from e2e.cluster.errors import SetupError
from e2e.cluster.kube import Kube
from e2e.cluster.layout import ClusterSpec
from e2e.cluster.local import LocalCluster, unavailable
from e2e.cluster.processes import ManagedProcess
from e2e.cluster.targets import RELEASES

DEFAULT_NAME = "e2e"


class Cluster(Protocol):
    """A running cluster with one node on which a driver can be tested."""

    @property
    def kube(self) -> Kube:
        """The administrator's client."""
        ...

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        ...

    @property
    def node_name(self) -> str:
        """Name of the Node object."""
        ...

    def import_image(self, archive: Path) -> None:
        """Give the node an image."""
        ...

    def outage(self, seconds: float) -> None:
        """Take the API server away for so long."""
        ...

    def restart_kubelet(self) -> None:
        """Restart the node's kubelet."""
        ...

    def kill_kubelet(self) -> None:
        """Crash the node's kubelet and start it again."""
        ...

    @property
    def processes(self) -> Sequence[ManagedProcess]:
        """The programs whose logs belong into a report."""
        ...


class Provider(Protocol):
    """Makes clusters of one kind."""

    @property
    def name(self) -> str:
        """The word by which it is chosen."""
        ...

    def unavailable(self) -> str | None:
        """Why it cannot provide a cluster here, None if it can. Starts nothing."""
        ...

    def setup(self) -> None:
        """Get what is missing (packages, programs). Takes minutes the first time."""
        ...

    def cluster(self, spec: ClusterSpec) -> AbstractContextManager[LocalCluster]:
        """A cluster that runs as long as the context is entered."""
        ...


class LocalProvider:
    """Kubernetes from Go modules, in a network namespace of this machine."""

    name = "local"

    def unavailable(self) -> str | None:
        """Why no local cluster can run here."""
        return unavailable()

    def setup(self) -> None:
        """Install packages and build programs that are missing."""
        build.build_all([chosen_kubernetes()])

    def cluster(self, spec: ClusterSpec) -> LocalCluster:
        """A cluster, not started: entering it starts it."""
        return LocalCluster(spec)


PROVIDERS: Mapping[str, Provider] = {"local": LocalProvider()}


def chosen_spec() -> ClusterSpec:
    """The session's cluster, as the environment wants it."""
    return ClusterSpec.with_dra(chosen_name(), chosen_kubernetes())


def chosen_kubernetes() -> str:
    """Minor version: ``$ALIQUOT_E2E_KUBERNETES``, default the newest one known.

    Raises SetupError for one that is not known.
    """
    chosen = os.environ.get("ALIQUOT_E2E_KUBERNETES") or list(RELEASES)[-1]
    if chosen not in RELEASES:
        known = ", ".join(RELEASES)
        raise SetupError(f"ALIQUOT_E2E_KUBERNETES={chosen}: known are {known}")
    return chosen


def chosen_name() -> str:
    """Name of the session's cluster: ``$ALIQUOT_E2E_NAME``; one a worker under pytest-xdist."""
    name = os.environ.get("ALIQUOT_E2E_NAME") or DEFAULT_NAME
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return f"{name}-{worker}" if worker else name
