"""Every object of the chart, asked of real API servers: a strict dry run, nothing unknown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import build
from e2e.cluster.api_only import ControlPlane
from e2e.cluster.errors import KubeError
from e2e.cluster.kube import Kube, Object, parse_documents
from e2e.cluster.layout import ClusterSpec
from e2e.cluster.provider import chosen_name
from e2e.cluster.targets import RELEASES
from e2e.sites.helm import NAMESPACE, template

VALUES = Path(__file__).parent / "values"
GATES_OF_134 = {
    "DRAConsumableCapacity": True,
    "DRADeviceTaints": True,
    "DRAExtendedResource": True,
    "DRAPartitionableDevices": True,
}
SPECS: dict[str, dict[str, Any]] = {
    "1.34": {"kubernetes": "1.34"},
    "1.34 with gates": {"kubernetes": "1.34", "gates": GATES_OF_134},
    "1.37": {"kubernetes": "1.37"},
}
# As much of the Prometheus operator's CRD as is needed to have the kind.
MONITORS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "ServiceMonitor", "plural": "servicemonitors"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module", params=SPECS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Kube, str]]:
    """An API server of a version, ready for the chart's objects, and the version."""
    about = SPECS[request.param]
    target = RELEASES[about["kubernetes"]]
    if "kube-apiserver" in build.absent(target):
        pytest.skip(f"{target.name} is not built: python -m e2e.cluster.build api-1.34")
    name = f"{chosen_name()[:14]}-api"
    with ControlPlane(ClusterSpec(name=name, **about)) as cluster:
        kube = cluster.kube
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        # No controller manager makes the account of a pod that names none.
        account = {"name": "default", "namespace": NAMESPACE}
        default = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
        kube.apply([namespace, default, MONITORS])
        established(kube)
        yield kube, target.name.rpartition("-")[2]


def established(kube: Kube) -> None:
    def there(crd: Object) -> bool:
        conditions = crd.get("status", {}).get("conditions") or []  # null at first
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    kube.wait("CustomResourceDefinition", MONITORS["metadata"]["name"], there)


def refusal(kube: Kube, item: Object) -> str:
    """What the API server finds wrong with the object, "" for nothing."""
    try:
        kube.apply_dry(item)
    except KubeError as error:
        return f"{item['kind']} {item['metadata']['name']}: {error.message}"
    return ""


@pytest.mark.parametrize("name", sorted(path.stem for path in VALUES.glob("*.yaml")))
def test_nothing_of_the_chart_is_refused(server: tuple[Kube, str], name: str):
    kube, version = server
    values = yaml.safe_load((VALUES / f"{name}.yaml").read_text())

    found = parse_documents(template(values, version))

    assert [said for item in found if (said := refusal(kube, item))] == []


def test_an_unknown_field_would_be_found(server: tuple[Kube, str]):
    kube, version = server
    found = parse_documents(template({}, version))
    daemons = next(item for item in found if item["kind"] == "DaemonSet")
    daemons["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Never"

    assert "imagePullPolice" in refusal(kube, daemons)
