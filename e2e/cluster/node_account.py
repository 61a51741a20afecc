"""The service account of a node's plugin, with a token as a pod on that node would hold it.

The kubelet mints tokens that are bound to the pod; such a token's claims name the node
(ServiceAccountTokenPodNodeInfo, KEP-4193), and that is what the policy for ResourceSlices and
the verbs ``associated-node:…`` look at. Tests that run the driver as a process of the host get
the same by a TokenRequest bound to a pod that is assigned to the node.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.images import PAUSE
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster

NAMESPACE = "aliquot-system"
ACCOUNT = "aliquot-node"
_TOKEN_LIFE_S = 24 * 3600


@dataclass(frozen=True)
class NodeAccount:
    """The account's token, its kubeconfig, a client that uses it, and the pod it is bound to."""

    token: str
    kubeconfig: Path
    kube: Kube
    pod: str

    def claims(self) -> dict[str, Any]:
        """What the token says; not verified."""
        return token_claims(self.token)


def token_claims(token: str) -> dict[str, Any]:
    """The payload of a JSON web token (RFC 7519), unverified."""
    payload = token.split(".")[1]
    padded = payload + "=" * (-len(payload) % 4)
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(padded))
    return claims


def holder_pod(name: str, node: str, account: str, namespace: str) -> Object:
    """A pod that does nothing, assigned to the node by hand, for a token to be bound to."""
    container = {"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }


def create_account(kube: Kube, name: str = ACCOUNT, namespace: str = NAMESPACE) -> None:
    """Make the namespace and the account. Existing ones are fine."""
    metadata = {"name": name, "namespace": namespace}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def mint_token(kube: Kube, pod: Object, seconds: int = _TOKEN_LIFE_S) -> str:
    """A token of the pod's account, bound to the pod (authentication.k8s.io/v1 TokenRequest).

    It ends with the pod. Raises KubeError if the pod is not stored.
    """
    metadata, account = pod["metadata"], pod["spec"]["serviceAccountName"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds, "boundObjectRef": bound},
    }
    base = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
    token: str = kube.request("POST", base, request)["status"]["token"]
    return token


def node_account(
    cluster: LocalCluster,
    manifests: str | Sequence[Object] = (),
    name: str = ACCOUNT,
    namespace: str = NAMESPACE,
) -> NodeAccount:
    """Make namespace, account and the given RBAC objects; mint a token bound to the node.

    ``manifests`` (YAML text or objects) are applied as they are, so their subjects must name
    the account. Repeating it gives a new token on the same pod.
    """
    kube = cluster.kube
    create_account(kube, name, namespace)
    kube.apply(manifests if isinstance(manifests, str) else list(manifests))
    pod_name = f"{name}-{cluster.node_name}"
    pod = kube.find("Pod", pod_name, namespace)
    if pod is None:
        pod = kube.create(holder_pod(pod_name, cluster.node_name, name, namespace))
    token = mint_token(kube, pod)
    client = cluster.client(token, name)
    return NodeAccount(token, cluster.layout.pki / f"{name}.kubeconfig", client, pod_name)
