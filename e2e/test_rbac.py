"""The node plugin may do what it needs on its own node, and nothing else.

Rights are tried with the very account and token of the plugin; each right is taken away in turn,
and the plugin says which one is missing.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from driver.sim import control
from e2e.cluster.errors import KubeError
from e2e.cluster.kube import Kube, Object, parse_documents
from e2e.cluster.local import LocalCluster
from e2e.cluster.node_account import ACCOUNT, NAMESPACE, holder_pod, mint_token
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, manifests, start_driver
from e2e.workloads import allocated_by_hand
from kubeletplugin.contract import ClaimRef

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
FOREIGN = "elsewhere"


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    node = start_driver(
        cluster, "--health-interval=0.2", "--refresh-interval=0.5", "--reconcile-interval=0.5"
    )
    node.wait_published(8)
    yield node
    node.process.stop()


@pytest.fixture
def account(driver: DriverNode) -> Kube:
    """A client with the plugin's own token."""
    return driver.account.kube


# Which ResourceSlices ------------------------------------------------------------------------


def slice_of(node: str | None, driver: str = DRIVER, name: str = "rbac-test") -> Object:
    where: Object = {"allNodes": True} if node is None else {"nodeName": node}
    pool = {"name": node or "all", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pool, **where},
    }


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(KubeError) as caught:
        call()
    assert caught.value.status in (403, 422)
    return caught.value.message


@pytest.fixture
def foreign(kube: Kube) -> Iterator[Object]:
    """A ResourceSlice of another node, as that one's plugin publishes it."""
    yield kube.create(slice_of(FOREIGN, name="rbac-foreign"))
    kube.delete("ResourceSlice", "rbac-foreign")


def dry(client: Kube, body: Object) -> Object:
    """What a create would come to; admission has its say and nothing is stored."""
    return client.request("POST", SLICES, body, dryRun="All")


def test_the_account_writes_slices_of_its_node_and_driver(account: Kube, cluster: LocalCluster):
    stored = dry(account, slice_of(cluster.node_name))

    assert stored["spec"]["nodeName"] == cluster.node_name


def test_slices_of_another_node_are_refused(account: Kube, cluster: LocalCluster, foreign: Object):
    path = f"{SLICES}/{foreign['metadata']['name']}"
    changed = {**foreign, "spec": {**foreign["spec"], "devices": [{"name": "gpu-0"}]}}
    calls = {
        "create": lambda: dry(account, slice_of(FOREIGN)),
        "update": lambda: account.request("PUT", path, changed),
        "delete": lambda: account.request("DELETE", path),
    }

    for call in calls.values():
        text = refused(call)
        assert f"node {cluster.node_name} may not write" in text
        assert f"of node {FOREIGN}" in text


def test_slices_of_no_single_node_are_refused(account: Kube):
    assert "no single node" in refused(lambda: dry(account, slice_of(None)))


def test_slices_of_another_driver_are_refused(account: Kube, cluster: LocalCluster):
    text = refused(lambda: dry(account, slice_of(cluster.node_name, "other.example.com")))

    assert DRIVER in text
    assert "other.example.com" in text


def test_a_token_without_a_node_writes_nothing(cluster: LocalCluster, driver: DriverNode):
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    base = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    token = cluster.kube.request("POST", base, request)["status"]["token"]
    client = cluster.client(token, "unbound")

    assert client.request("GET", SLICES)["items"]  # reading needs no node
    assert "bound to a pod on a node" in refused(lambda: dry(client, slice_of(cluster.node_name)))


def test_the_token_of_another_node_is_that_nodes(cluster: LocalCluster, driver: DriverNode):
    """The same account on a node beside this one (a Node object without a kubelet)."""
    kube = cluster.kube
    kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": FOREIGN}})
    holder = kube.create(holder_pod("rbac-holder", FOREIGN, ACCOUNT, NAMESPACE))
    client = cluster.client(mint_token(kube, holder), "elsewhere")

    assert dry(client, slice_of(FOREIGN))
    assert FOREIGN in refused(lambda: dry(client, slice_of(cluster.node_name)))

    kube.delete("Pod", "rbac-holder", NAMESPACE, grace_s=0)
    kube.delete("Node", FOREIGN)


def test_others_are_not_limited_by_the_policy(kube: Kube, driver: DriverNode):
    assert dry(kube, slice_of(FOREIGN))
    assert dry(kube, slice_of(None, "other.example.com"))


# Which verbs ---------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Right:
    group: str
    resource: str
    verb: str
    name: str = ""

    def review(self) -> Object:
        resource, _, sub = self.resource.partition("/")
        attributes = {"group": self.group, "resource": resource, "subresource": sub}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "verb": self.verb, "name": self.name}},
        }


def allowed(account: Kube, right: Right) -> bool:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(account.request("POST", path, right.review())["status"]["allowed"])


def cluster_role() -> Object:
    return next(d for d in parse_documents(manifests("rbac")) if d["kind"] == "ClusterRole")


def rights(role: Object) -> set[Right]:
    return {
        Right(group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def less(role: Object, right: Right) -> Object:
    """The role without one right."""
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != right.verb]}
        if right.resource in rule["resources"]
        else rule
        for rule in role["rules"]
    ]
    return {**role, "rules": [rule for rule in rules if rule["verbs"]]}


@contextmanager
def without(kube: Kube, account: Kube, right: Right) -> Iterator[None]:
    """The right is taken away for the body. It was the role's alone: nothing else gives it."""
    kube.apply(less(cluster_role(), right))
    try:
        poll(lambda: not allowed(account, right), f"{right} to be gone")
        yield
    finally:
        kube.apply(cluster_role())
        poll(lambda: allowed(account, right), f"{right} to be back")


@dataclass
class Scene:
    """The plugin, and what may be done to it to make it use a right."""

    driver: DriverNode
    namespace: str
    ref: ClaimRef  # allocated, not prepared
    seen: int = 0

    def look_from_here(self) -> None:
        self.seen = self.driver.process.log.stat().st_size

    def told(self) -> str:
        """What the log says since, and the readiness now."""
        with self.driver.process.log.open("rb") as log:
            log.seek(self.seen)
            return log.read().decode() + " ".join(self.driver.ready().get("reasons", []))

    def lose_a_slice(self) -> None:
        self.driver.kube.delete("ResourceSlice", self.driver.slices()[0]["metadata"]["name"])

    def change_a_slice(self) -> None:
        found = self.driver.slices()[0]
        found["spec"]["devices"][0]["attributes"]["uuid"] = {"string": "GPU-other"}
        self.driver.kube.replace(found)

    def add_a_slice(self) -> None:
        body = slice_of(self.driver.cluster.node_name, name="rbac-stray")
        self.driver.kube.create(body)

    def restart(self) -> None:
        self.driver.process.stop()
        self.driver.process.launch()

    def prepare(self) -> None:
        self.driver.prepare(self.ref)

    def damage_a_record(self) -> None:
        self.driver.prepare(self.ref)
        self.driver.process.stop()
        (self.driver.plugin_dir / "claims" / f"{self.ref.uid}.json").write_bytes(b"")
        self.driver.process.launch()

    def an_event(self) -> None:
        control.lose(self.driver.sim, 0)
        poll(lambda: "GPU_IS_LOST" in self.told() or "card GPU-" in self.told(), "a lost card")
        control.restore(self.driver.sim, 0)

    def the_same_event_again(self) -> None:
        for _ in range(2):
            (path,) = self.driver.cdi_files()
            path.unlink()
            poll(path.exists, "the CDI file to be back")


DRA = "resource.k8s.io"
# What makes the plugin use a right, and what it says where that is missing.
CASES: dict[Right, tuple[Callable[[Scene], Any], str]] = {
    Right(DRA, "resourceslices", "list"): (
        Scene.lose_a_slice,
        r"cannot list resource \"resourceslices\".* needs get, list",
    ),
    Right(DRA, "resourceslices", "watch"): (
        Scene.restart,
        r"watch of \S+resourceslices: .*cannot watch resource \"resourceslices\"",
    ),
    Right(DRA, "resourceslices", "create"): (
        Scene.lose_a_slice,
        r"cannot create resource \"resourceslices\".* create, update",
    ),
    Right(DRA, "resourceslices", "update"): (
        Scene.change_a_slice,
        r"cannot update resource \"resourceslices\".* create, update",
    ),
    Right(DRA, "resourceslices", "delete"): (
        Scene.add_a_slice,
        r"cannot delete resource \"resourceslices\".* and delete",
    ),
    Right(DRA, "resourceclaims", "get"): (
        Scene.prepare,
        r"prepare refused: .*ClusterRole needs the verb get on resourceclaims",
    ),
    Right(DRA, "resourceclaims", "list"): (
        Scene.damage_a_record,
        r"damaged records are not rebuilt yet: .*cannot list resource \"resourceclaims\"",
    ),
    Right(DRA, "resourceclaims/status", "patch"): (
        Scene.prepare,
        r"status of claim .* not written: .*cannot patch resource \"resourceclaims/status\"",
    ),
    Right(DRA, "resourceclaims/driver", "associated-node:patch", DRIVER): (
        Scene.prepare,
        r"status of claim .* not written: .*requires resource=\"resourceclaims/driver\", "
        r"verb=\"\[associated-node:patch",
    ),
    Right("", "nodes", "get"): (
        Scene.lose_a_slice,
        r"published without an owner.*cannot get resource \"nodes\"",
    ),
    Right("events.k8s.io", "events", "create"): (
        Scene.an_event,
        r"Event \S+ not written: .*cannot create resource \"events\"",
    ),
    Right("events.k8s.io", "events", "patch"): (
        Scene.the_same_event_again,
        r"Event \S+ not written: .*cannot patch resource \"events\"",
    ),
}


# Used only where the node policy says eviction: overMemory, and refused by name otherwise
# (tests/driver/test_watchdog.py).
EVICT = Right("", "pods/eviction", "create")


def test_the_role_has_each_right_that_is_used_and_no_other():
    """Each case below shows that one of them is needed."""
    assert rights(cluster_role()) == {*CASES, EVICT}


def test_the_account_has_what_the_role_says_and_no_more(account: Kube):
    assert all(allowed(account, right) for right in CASES)
    denied = [
        Right("", "secrets", "get"),
        Right("", "pods", "list"),
        Right("", "nodes", "list"),
        Right("", "nodes", "patch"),
        Right(DRA, "resourceclaims", "watch"),
        Right(DRA, "resourceclaims", "delete"),
        Right(DRA, "resourceclaims", "update"),
        Right(DRA, "resourceclaims/binding", "update"),
        Right(DRA, "resourceclaims/driver", "arbitrary-node:patch", DRIVER),
        Right(DRA, "resourceclaims/driver", "associated-node:patch", "other.example.com"),
        Right(DRA, "resourceslices", "deletecollection"),
        Right(DRA, "deviceclasses", "get"),
        Right("events.k8s.io", "events", "list"),
    ]
    assert [right for right in denied if allowed(account, right)] == []


@pytest.fixture
def scene(driver: DriverNode, namespace: str) -> Iterator[Scene]:
    device = driver.devices()[0]["name"]
    result = {"driver": DRIVER, "pool": driver.cluster.node_name, "device": device}
    made = Scene(driver, namespace, allocated_by_hand(driver.kube, namespace, "c", [result]))
    yield made
    control.restore(driver.sim, 0)
    if not driver.process.running:
        driver.process.start()
    poll(lambda: driver.is_ready() and len(driver.devices()) == 8, "the plugin to be well again")
    poll(lambda: driver.unprepare(made.ref) == "", "the claim to be given back")
    driver.wait_clean()


def test_with_all_rights_the_status_is_written_and_nothing_is_missed(scene: Scene, kube: Kube):
    scene.look_from_here()
    scene.prepare()

    kube.wait(
        "ResourceClaim",
        scene.ref.name,
        lambda found: found["status"].get("devices"),
        namespace=scene.namespace,
    )
    assert not re.search("cannot|forbidden|not written", scene.told())


@pytest.mark.parametrize("right", CASES, ids=lambda right: f"{right.verb} {right.resource}")
def test_a_missing_right_is_named_and_the_plugin_goes_on(
    scene: Scene, account: Kube, kube: Kube, right: Right
):
    provoke, wanted = CASES[right]
    if provoke is Scene.the_same_event_again:
        scene.prepare()
    with without(kube, account, right):
        scene.look_from_here()
        provoke(scene)
        poll(
            lambda: re.search(wanted, scene.told()),
            f"the plugin to miss {right}",
            timeout_s=20,
            detail=scene.told,
        )
        assert scene.driver.process.running

    if right.resource == "nodes":
        scene.lose_a_slice()  # so that it gets its owner again
        poll(scene.driver.slices, "the ResourceSlice to be back")
        poll(
            lambda: all(s["metadata"].get("ownerReferences") for s in scene.driver.slices()),
            "the owner to be back",
        )
