"""A small blocking Kubernetes client for tests: raw JSON in and out, waiting by polling."""

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from e2e.cluster.errors import ClusterError, KubeError, WaitTimeoutError
from e2e.cluster.polling import poll
from e2e.cluster.processes import inside_environment
from e2e.cluster.transport import Reply, Transport

Object = dict[str, Any]
Objects = list[Object]
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
FIELD_MANAGER = "aliquot-e2e"


@dataclass(frozen=True)
class Resource:
    """Where objects of one kind live."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """URL path of the collection, or of one object of it."""
        base = "/api" if "/" not in self.api_version else "/apis"
        scope = f"/namespaces/{namespace}" if self.namespaced else ""
        tail = f"/{name}" if name else ""
        return f"{base}/{self.api_version}{scope}/{self.plural}{tail}"


def parse_discovery(document: Mapping[str, Any]) -> list[Resource]:
    """Resources of an APIGroupDiscoveryList, the server's preferred versions first."""
    found = []
    for group in document["items"]:
        group_name = group["metadata"].get("name", "")
        for version in group["versions"]:
            name = version["version"]
            api_version = f"{group_name}/{name}" if group_name else name
            for entry in version.get("resources", []):
                kind = entry.get("responseKind", {}).get("kind", "")
                namespaced = entry.get("scope") == "Namespaced"
                found.append(Resource(api_version, kind, entry["resource"], namespaced))
    return found


def parse_documents(text: str) -> list[Object]:
    """Objects of a YAML stream; empty documents are left out, a ``List`` is opened."""
    documents = [document for document in yaml.safe_load_all(text) if document]
    flat: list[Object] = []
    for document in documents:
        flat.extend(document["items"] if document.get("kind") == "List" else [document])
    return flat


def parse_feature_gates(metrics: str) -> dict[str, bool]:
    """Gates that a component runs with, from ``kubernetes_feature_enabled`` in /metrics."""
    gates = {}
    for line in metrics.splitlines():
        if line.startswith("kubernetes_feature_enabled{"):
            labels, _, value = line.rpartition(" ")
            name = labels.partition('name="')[2].partition('"')[0]
            gates[name] = float(value) == 1
    return gates


class Kube:
    """One user's view of the API server.

    Kinds are given by name (``"Pod"``); where two versions serve a kind, the server's preferred
    one is taken unless ``api_version`` says otherwise. Errors of the server are KubeError.
    """

    def __init__(self, transport: Transport, kubectl: Sequence[str]) -> None:
        self._transport = transport
        self._kubectl = tuple(kubectl)
        self._resources: list[Resource] = []

    def request(self, method: str, path: str, body: Any = None, **query: str) -> Object:
        """Any request with a JSON answer; keyword arguments are the query."""
        return self._transport.send(method, path, body, query).json()

    def raw(self, path: str) -> Reply:
        """GET with whatever answer."""
        return self._transport.send("GET", path)

    def healthy(self) -> bool:
        """Whether the API server is there and ready."""
        try:
            return self.raw("/readyz").status == 200
        except OSError:
            return False

    def resources(self) -> list[Resource]:
        """Everything that the server serves, its preferred versions first."""
        return self._discover()

    def resource(self, kind: str, api_version: str | None = None) -> Resource:
        """Look a kind up at the server. Raises ClusterError if it serves no such kind."""
        for fresh in (False, True):
            if fresh or not self._resources:
                self._resources = self._discover()
            for entry in self._resources:
                if entry.kind == kind and api_version in (None, entry.api_version):
                    return entry
        raise ClusterError(f"the API server serves no kind {kind} in {api_version or 'any group'}")

    def _discover(self) -> list[Resource]:
        headers = {"Accept": _DISCOVERY}
        replies = [
            self._transport.send("GET", path, headers=headers) for path in ("/api", "/apis")
        ]
        return [entry for reply in replies for entry in parse_discovery(reply.json())]

    def apply(self, manifests: str | Object | Iterable[Object]) -> Objects:
        """Server-side apply of YAML text, an object or objects; returns what is stored."""
        if isinstance(manifests, str):
            objects = parse_documents(manifests)
        else:
            objects = [manifests] if isinstance(manifests, dict) else list(manifests)
        return [self._apply_one(item) for item in objects]

    def apply_dry(self, item: Object) -> Object:
        """What ``apply`` would store; nothing is. Unknown and double fields are errors."""
        return self._apply_one(item, dryRun="All", fieldValidation="Strict")

    def _apply_one(self, item: Object, **more: str) -> Object:
        path = self._path_of(item, item["metadata"]["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true", **more}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return self._transport.send("PATCH", path, item, query, headers).json()

    def _path_of(self, item: Object, name: str = "") -> str:
        entry = self.resource(item["kind"], item["apiVersion"])
        return entry.path(item["metadata"].get("namespace", "default"), name)

    def create(self, item: Object) -> Object:
        """POST; works with ``generateName``."""
        return self.request("POST", self._path_of(item), item)

    def replace(self, item: Object, subresource: str = "") -> Object:
        """PUT of an object that was read before; with ``subresource`` (status) that part."""
        path = self._path_of(item, item["metadata"]["name"])
        return self.request("PUT", f"{path}/{subresource}" if subresource else path, item)

    def get(
        self, kind: str, name: str, namespace: str = "default", api_version: str | None = None
    ) -> Object:
        """One object. Raises KubeError with status 404 if it is absent."""
        return self.request("GET", self.resource(kind, api_version).path(namespace, name))

    def find(
        self, kind: str, name: str, namespace: str = "default", api_version: str | None = None
    ) -> Object | None:
        """One object, None if it is absent."""
        try:
            return self.get(kind, name, namespace, api_version)
        except KubeError as error:
            if error.status != 404:
                raise
            return None

    def list(
        self,
        kind: str,
        namespace: str = "default",
        labels: str = "",
        fields: str = "",
        api_version: str | None = None,
    ) -> Objects:
        """Objects of a kind in a namespace, with kind and apiVersion filled in."""
        entry = self.resource(kind, api_version)
        query = {"labelSelector": labels, "fieldSelector": fields}
        chosen = {key: value for key, value in query.items() if value}
        answer = self.request("GET", entry.path(namespace), **chosen)
        known = {"apiVersion": entry.api_version, "kind": entry.kind}
        return [{**known, **item} for item in answer["items"]]

    def delete(
        self, kind: str, name: str, namespace: str = "default", grace_s: int | None = None
    ) -> None:
        """Ask for deletion and do not wait. Absent is fine."""
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.request("DELETE", self.resource(kind).path(namespace, name), options)
        except KubeError as error:
            if error.status != 404:
                raise

    def wait(
        self,
        kind: str,
        name: str,
        condition: Callable[[Object], bool],
        namespace: str = "default",
        timeout_s: float = 60.0,
    ) -> Object:
        """Poll until the object exists and ``condition`` holds; return it as it then was.

        Raises WaitTimeoutError with its last status and its events.
        """

        def probe() -> Object | None:
            found = self.find(kind, name, namespace)
            return found if found is not None and condition(found) else None

        what = f"{kind} {namespace}/{name}"
        return poll(probe, what, timeout_s, detail=lambda: self.describe(kind, name, namespace))

    def wait_gone(
        self, kind: str, name: str, namespace: str = "default", timeout_s: float = 60.0
    ) -> None:
        """Poll until the object is absent. Raises WaitTimeoutError as ``wait``."""
        poll(
            lambda: self.find(kind, name, namespace) is None,
            f"{kind} {namespace}/{name} to be gone",
            timeout_s,
            detail=lambda: self.describe(kind, name, namespace),
        )

    def wait_pod(
        self, name: str, phase: str = "Running", namespace: str = "default", timeout_s: float = 60
    ) -> Object:
        """Poll until the pod is in a phase (``Running`` also wants every container ready).

        Raises WaitTimeoutError as ``wait``, and at once when the pod can never get there.
        """

        def there(pod: Object) -> bool:
            status = pod.get("status", {})
            now = status.get("phase")
            if now != phase and now in ("Succeeded", "Failed"):
                about = self.describe("Pod", name, namespace)
                raise WaitTimeoutError(f"pod {name} is {now}, {phase} was wanted: {about}")
            containers = status.get("containerStatuses", [])
            return now == phase and (phase != "Running" or all(c["ready"] for c in containers))

        return self.wait("Pod", name, there, namespace, timeout_s)

    def describe(self, kind: str, name: str, namespace: str = "default") -> str:
        """Status and events of an object, for error texts."""
        found = self.find(kind, name, namespace)
        status = yaml.safe_dump(found.get("status")) if found else "absent\n"
        lines = [f"{e['reason']}: {e['message']}" for e in self.events(name, namespace)]
        return f"\n{status}" + "\n".join(lines)

    def events(self, name: str, namespace: str = "default") -> Objects:
        """Events about objects of this name, in no order."""
        return self.list(
            "Event", namespace, fields=f"involvedObject.name={name}", api_version="v1"
        )

    def logs(self, pod: str, container: str = "", namespace: str = "default") -> str:
        """What the container has written."""
        query = {"container": container} if container else None
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        return self._transport.send("GET", path, query=query).text()

    def exec(
        self, pod: str, argv: Sequence[str], container: str = "", namespace: str = "default"
    ) -> str:
        """Run a command in a container and return its output. Raises ClusterError if it fails."""
        where = ["-n", namespace, *(["-c", container] if container else [])]
        return self.kubectl("exec", *where, pod, "--", *argv)

    def kubectl(self, *args: str) -> str:
        """Output of kubectl, for what this class has no method for."""
        done = subprocess.run(
            [*self._kubectl, *args],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=inside_environment(),
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()
