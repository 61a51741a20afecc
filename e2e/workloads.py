"""Pods and claims for tests, short to write and the same everywhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from e2e.cluster.errors import KubeError
from e2e.cluster.images import BUSYBOX
from e2e.cluster.kube import Kube, Object
from e2e.cluster.polling import poll
from kubeletplugin.contract import ClaimRef

_CONFLICT = 409
SLEEP = "trap 'exit 0' TERM; sleep 100000 & wait"
# What a container sees of its GPUs: our variables, then the device nodes.
LOOK = "env | grep -E '^(ALIQUOT|NVIDIA)_' | sort; ls /dev | grep nvidia; echo looked; "


def exactly(name: str = "gpu", count: int = 1, *cel: str, **more: Any) -> Object:
    """One request of class ``gpu``, with CEL selectors."""
    request: Object = {"deviceClassName": "gpu", **more}
    if count != 1:
        request["count"] = count
    if cel:
        request["selectors"] = [{"cel": {"expression": expression}} for expression in cel]
    return {"name": name, "exactly": request}


def match(attribute: str, *requests: str) -> Object:
    """A constraint: the same value of ``attribute`` for all devices."""
    found: Object = {"matchAttribute": attribute}
    return {**found, "requests": list(requests)} if requests else found


def claim_spec(*requests: Object, **more: Any) -> Object:
    return {"devices": {"requests": list(requests or (exactly(),)), **more}}


def template(name: str, namespace: str, spec: Object) -> Object:
    return _dra("ResourceClaimTemplate", name, namespace, {"spec": spec})


def claim(name: str, namespace: str, spec: Object) -> Object:
    return _dra("ResourceClaim", name, namespace, spec)


def _dra(kind: str, name: str, namespace: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": namespace}
    api = "resource.k8s.io/v1"
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def opaque(driver: str, parameters: Object) -> Object:
    """An entry of a claim's ``config``."""
    return {"opaque": {"driver": driver, "parameters": parameters}}


def ref_of(found: Object) -> ClaimRef:
    """How the kubelet names a claim."""
    metadata = found["metadata"]
    return ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])


def allocated_by_hand(
    kube: Kube, namespace: str, name: str, results: Sequence[Object], *config: Object
) -> ClaimRef:
    """Make a claim and write its allocation as the scheduler does, right or wrong.

    ``results``: driver, pool and device of each; ``config`` counts as the claim's.
    """
    made = kube.create(claim(name, namespace, claim_spec(exactly(count=len(results)))))
    devices: Object = {"results": [{"request": "gpu", **result} for result in results]}
    if config:
        devices["config"] = [{"source": "FromClaim", **entry} for entry in config]
    # The pool is the node. Without a node the API server lets no plugin write status.devices.
    node = {"key": "metadata.name", "operator": "In", "values": [results[0]["pool"]]}
    terms = [{"matchFields": [node]}]
    allocation = {"devices": devices, "nodeSelector": {"nodeSelectorTerms": terms}}
    made["status"] = {"allocation": allocation}
    return ref_of(kube.replace(made, "status"))


def released_by_hand(kube: Kube, ref: ClaimRef) -> None:
    """Take the allocation back and delete the claim; the plugin may write its status meanwhile."""

    def emptied() -> bool:
        found = kube.get("ResourceClaim", ref.name, ref.namespace)
        try:
            kube.replace({**found, "status": {}}, "status")
        except KubeError as error:
            if error.status != _CONFLICT:
                raise
            return False
        return True

    poll(emptied, f"claim {ref} to be without an allocation")
    kube.delete("ResourceClaim", ref.name, ref.namespace)


def container(script: str, claims: Sequence[Object], name: str = "main") -> Object:
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"claims": list(claims)},
    }


def pod(
    name: str,
    namespace: str,
    script: str = LOOK + SLEEP,
    *,
    claims: Mapping[str, str] | None = None,
    templates: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A pod whose one container uses every claim; ``claims`` and ``templates``: name → object."""
    entries = [{"name": k, "resourceClaimName": v} for k, v in (claims or {}).items()]
    entries += [{"name": k, "resourceClaimTemplateName": v} for k, v in (templates or {}).items()]
    uses = [{"name": entry["name"]} for entry in entries]
    body: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [container(script, uses)],
        "resourceClaims": entries,
        **spec,
    }
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def seen(
    kube: Kube, name: str, namespace: str, container: str = ""
) -> tuple[dict[str, str], set[str]]:
    """Environment and device nodes that a container printed by ``LOOK``."""

    def looked() -> list[str] | None:
        found = kube.logs(name, container, namespace=namespace).splitlines()
        return found if "looked" in found else None

    lines = poll(looked, f"{namespace}/{name} to look around")
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    return env, {line for line in lines if line.startswith("nvidia") and "=" not in line}


def uuids(env: Mapping[str, str]) -> set[str]:
    """The cards that a container was told of, by request."""
    return {
        value
        for key, value in env.items()
        if key.endswith("_UUID") and not key.startswith("ALIQUOT_DEVICE")
    }


def cards(nodes: set[str]) -> set[str]:
    """The device nodes of cards among all: nvidia0, nvidia1, …"""
    return {node for node in nodes if node.removeprefix("nvidia").isdigit()}


def is_pending(pod: Object) -> bool:
    """Not scheduled, and the scheduler has said why."""
    conditions = pod["status"].get("conditions", [])
    return any(
        c["type"] == "PodScheduled"
        and c["status"] == "False"
        and c.get("reason") == "Unschedulable"
        for c in conditions
    )
