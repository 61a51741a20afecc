"""Sites: which one is chosen, and what is given to the chart."""

from pathlib import Path

import pytest

from e2e.cluster.errors import SetupError
from e2e.cluster.kube import Kube, Objects
from e2e.cluster.transport import proxied
from e2e.sites import choose
from e2e.sites.helm import merged
from e2e.sites.installed import image_values
from e2e.sites.remote import ExistingSite
from e2e.sites.site import workers


def test_the_local_cluster_is_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(choose.VARIABLE, raising=False)
    assert choose.provider_name() == "local"


def test_an_unknown_provider_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(choose.VARIABLE, "minikube")

    with pytest.raises(SetupError, match="'minikube'; known are local, kind, existing"):
        choose.provider_name()


def test_an_existing_cluster_needs_kubeconfig_and_image(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("ALIQUOT_IMAGE", raising=False)

    with pytest.raises(SetupError, match="KUBECONFIG"):
        choose.remote_site("existing")
    with pytest.raises(SetupError, match="ALIQUOT_IMAGE"):
        ExistingSite(tmp_path / "kubeconfig")


def test_values_are_merged_key_by_key_and_the_later_one_wins():
    first = {"a": {"x": 1, "y": 2}, "b": [1, 2]}

    assert merged(first, {"a": {"y": 3}}, {"b": []}) == {"a": {"x": 1, "y": 3}, "b": []}
    assert first == {"a": {"x": 1, "y": 2}, "b": [1, 2]}


@pytest.mark.parametrize(
    ("name", "repository", "tag"),
    [
        ("localhost/aliquot:0.1.0", "localhost/aliquot", "0.1.0"),
        (
            "registry.example.com:5000/gpu/aliquot:v1",
            "registry.example.com:5000/gpu/aliquot",
            "v1",
        ),
    ],
)
def test_an_images_name_is_split_at_its_tag(name: str, repository: str, tag: str):
    assert image_values(name) == {"image": {"repository": repository, "tag": tag}}


class Nodes(Kube):
    """A client that knows nodes and nothing else."""

    def __init__(self) -> None:
        super().__init__(proxied(Path("/absent")), ())

    def list(self, kind: str, *_: object, **__: object) -> Objects:
        assert kind == "Node"
        taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
        soft = {"key": "busy", "effect": "PreferNoSchedule"}
        taints = {"b": [soft], "a": [], "control-plane": [taint]}
        return [
            {"metadata": {"name": name}, "spec": {"taints": found} if found else {}}
            for name, found in taints.items()
        ]


def test_workers_are_the_nodes_that_take_any_pod():
    assert workers(Nodes()) == ["a", "b"]
