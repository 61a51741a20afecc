"""What the doctor asks the API server, and how it judges the answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.checks import cluster
from driver.settings import Settings
from kubeletplugin.contract import Object
from kubeletplugin.kube import ApiError, KubeClient
from kubeletplugin.probe import COUNTERS, FEATURES
from kubeletplugin.testing.apiserver.server import ApiServer


def levels(findings):
    return {each.check: each.level for each in findings}


class Cluster(KubeClient):
    """The embedded server's client, with the reviews and groups that it does not have."""

    denied: frozenset[tuple[str, str]] = frozenset()
    served: tuple[str, ...] = ("v1",)

    async def create(self, path: str, body: Object, query: Any = ()) -> Object:
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            return {"status": {"allowed": (asked["verb"], resource) not in self.denied}}
        if path.endswith("/selfsubjectreviews"):
            return {"status": {"userInfo": {"username": "system:serviceaccount:a:b"}}}
        return await super().create(path, body, query)

    async def get(self, path: str, query: Any = (), *, timeout: float = 30) -> Object:  # noqa: ASYNC109
        if path == "/apis/resource.k8s.io":
            return {"versions": [{"version": each} for each in self.served]}
        return await super().get(path, query, timeout=timeout)


async def ask(server: ApiServer, **attributes: Any):
    async with Cluster.for_url(server.url) as client:
        for name, value in attributes.items():
            setattr(client, name, value)
        return await cluster.ask(client, Settings("node-1"))


async def test_a_cluster_that_has_everything_is_fine():
    async with ApiServer() as server:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
        await server.client().create("/api/v1/nodes", node)
        writes = dict(server.writes)
        found = await ask(server)
        assert {each.level for each in found} == {"ok"}
        assert dict(server.writes) == writes  # the probe is a dry run
        assert server.objects("resourceslices") == []


async def test_gates_that_are_off_and_rights_that_lack_are_named():
    async with ApiServer(version="v1.35.1", drop_features=["taints", "sharing"]) as server:
        denied = frozenset({("delete", "resourceslices"), ("patch", "resourceclaims/status")})
        found = {each.check: each for each in await ask(server, denied=denied)}
    assert found["feature gate DRAPartitionableDevices"].level == "ok"
    assert found["feature gate DRAConsumableCapacity"].level == "warn"
    assert "v1alpha3=true" in found["feature gate DRADeviceTaints"].mend
    rights = found["rights (RBAC)"]
    assert rights.level == "fail"
    assert "delete resourceslices, patch resourceclaims/status" in rights.found
    assert "system:serviceaccount:a:b" in rights.found
    assert found["node object"].level == "warn"


@pytest.mark.parametrize(
    ("minor", "served", "levels_of_v1alpha3"),
    [(34, ("v1",), ["fail"]), (35, ("v1", "v1alpha3"), []), (36, ("v1",), []), (35, None, [])],
)
def test_taints_on_old_clusters_need_v1alpha3(minor, served, levels_of_v1alpha3):
    found = list(cluster.judge_features(FEATURES, minor, served))
    extra = [each for each in found if each.check.endswith("v1alpha3")]
    assert [each.level for each in extra] == levels_of_v1alpha3
    assert all("no pod at all" in each.found for each in extra)


def test_a_gate_that_is_on_by_default_asks_for_no_runtime_config():
    found = list(cluster.judge_features(frozenset({COUNTERS}), 36, ("v1",)))
    taints = next(each for each in found if "Taints" in each.check)
    assert "runtime-config" not in taints.mend


async def test_an_old_cluster_stops_the_questions():
    async with ApiServer(version="v1.33.4") as server:
        found = await ask(server)
    assert levels(found) == {"API server": "ok", "version": "fail"}


async def test_a_server_that_does_not_answer_fails():
    async with ApiServer() as server:
        url = server.url
    async with KubeClient.for_url(url) as client:
        (found,) = await cluster.ask(client, Settings("node-1"))
    assert (found.check, found.level) == ("API server", "fail")
    assert url in found.found


async def test_a_server_without_reviews_is_a_warning():
    async with ApiServer() as server, KubeClient.for_url(server.url) as client:
        found = levels(await cluster.ask(client, Settings("node-1")))
    assert found["rights (RBAC)"] == "warn"


async def test_a_probe_that_is_refused_fails():
    class Refusing(Cluster):
        async def create(self, path: str, body: Object, query: Any = ()) -> Object:
            if "resourceslices" in path:
                raise ApiError(403, "Forbidden", "resourceslices is forbidden")
            return await super().create(path, body, query)

    async with ApiServer() as server, Refusing.for_url(server.url) as client:
        found = {each.check: each for each in await cluster.ask(client, Settings("node-1"))}
    assert found["feature gates"].level == "fail"
    assert "forbidden" in found["feature gates"].found


def test_the_rights_are_those_of_the_cluster_role():
    new = cluster.needed_rights("gpu.aliquot.dev", 36, claim_cache=False)
    old = cluster.needed_rights("gpu.aliquot.dev", 35, claim_cache=False)
    cached = cluster.needed_rights("gpu.aliquot.dev", 35, claim_cache=True)
    assert {each.verb for each in set(new) - set(old)} == {
        "associated-node:patch",
    }
    assert [each.verb for each in set(cached) - set(old)] == ["watch"]


def test_the_installations_cluster_role_grants_just_these_rights():
    text = (Path(__file__).parents[2] / "deploy" / "manifests" / "rbac.yaml").read_text()
    roles = [found for found in yaml.safe_load_all(text) if found["kind"] == "ClusterRole"]
    (role,) = [found for found in roles if found["metadata"]["name"] == "aliquot-node"]
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = cluster.needed_rights("gpu.aliquot.dev", 37, claim_cache=False)
    assert {(each.group, each.resource, each.verb) for each in needed} == granted


def test_without_a_kubeconfig_it_says_where_it_looked(tmp_path):
    setup = Settings("node-1", kubeconfig=str(tmp_path / "none"))
    (found,) = asyncio.run(cluster.check(setup))
    assert found.level == "fail"
    assert f"{tmp_path}/none" in found.found
