"""Which site a run is on: ``$ALIQUOT_E2E_PROVIDER``, local if it is not set."""

import os
from pathlib import Path

from e2e.cluster.errors import SetupError
from e2e.cluster.layout import state_root
from e2e.kind.cluster import KindCluster
from e2e.sites.remote import ExistingSite, KindSite

PROVIDERS = ("local", "kind", "existing")
VARIABLE = "ALIQUOT_E2E_PROVIDER"


def provider_name() -> str:
    """One of ``PROVIDERS``. Raises SetupError for another word."""
    name = os.environ.get(VARIABLE) or "local"
    if name not in PROVIDERS:
        raise SetupError(f"{VARIABLE} is {name!r}; known are {', '.join(PROVIDERS)}")
    return name


def kind_cluster() -> KindCluster:
    """The kind cluster of this machine, there or not."""
    return KindCluster(state_root().with_name("aliquot-e2e-kind"))


def remote_site(name: str) -> KindSite | ExistingSite:
    """The kind cluster that ``python -m e2e.kind`` made, or the one of ``$KUBECONFIG``."""
    if name == "kind":
        return KindSite(kind_cluster())
    path = os.environ.get("KUBECONFIG")
    if not path:
        raise SetupError("provider existing: KUBECONFIG names the cluster's kubeconfig")
    return ExistingSite(Path(path))
