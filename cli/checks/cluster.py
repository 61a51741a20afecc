"""The API server: reachable, new enough, which features it keeps, what we may do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cli.checks.finding import Finding, fail, ok, warn
from driver.settings import Settings
from kubeletplugin.kube import ApiError, KubeClient
from kubeletplugin.kubeconfig import KubeConfigError
from kubeletplugin.probe import COUNTERS, FEATURES, GATES, SHARING, TAINTS, probe, server_version

AREA = "Cluster"
MINIMUM = 34  # Kubernetes 1.34 has resource.k8s.io/v1

_GROUP = "resource.k8s.io"
_ON_BY_DEFAULT = 36  # the three gates are beta and on from 1.36
_WITHOUT = {
    TAINTS: "faulty cards that are free are withdrawn instead of tainted",
    COUNTERS: "whole cards and MIG partitions cannot be offered side by side",
    SHARING: "shares of a card cannot be offered",
}


@dataclass(frozen=True, slots=True)
class Right:
    """One verb that the plugin needs."""

    verb: str
    resource: str  # "resourceclaims/status" with its subresource
    group: str = _GROUP
    name: str = ""


def needed_rights(driver: str, minor: int, claim_cache: bool) -> tuple[Right, ...]:
    """As the installation's ClusterRole grants them; ``minor`` of the API server's version."""
    slices = ("list", "watch", "create", "update", "delete")
    claims = ("get", "list", "watch") if claim_cache else ("get", "list")
    rights = [Right(verb, "resourceslices") for verb in slices]
    rights += [Right(verb, "resourceclaims") for verb in claims]
    rights.append(Right("patch", "resourceclaims/status"))
    if minor >= 36:  # DRAResourceClaimGranularStatusAuthorization
        rights.append(Right("associated-node:patch", "resourceclaims/driver", name=driver))
    rights.append(Right("get", "nodes", group=""))
    rights.append(Right("create", "pods/eviction", group=""))
    rights += [Right(verb, "events", group="events.k8s.io") for verb in ("create", "patch")]
    return tuple(rights)


# Pure ------------------------------------------------------------------------------------


def judge_version(minor: int, patch: int) -> Finding:
    found = f"Kubernetes 1.{minor}.{patch}"
    if minor < MINIMUM:
        return fail("version", found, f"1.{MINIMUM} or newer", "update the cluster")
    return ok("version", found)


def judge_features(
    kept: frozenset[str], minor: int, served: Sequence[str] | None
) -> Iterator[Finding]:
    """What the dry-run probe brought back. ``served``: versions of resource.k8s.io; None: not
    known."""
    for feature in sorted(FEATURES):
        gate = GATES[feature]
        if feature in kept:
            yield ok(f"feature gate {gate}", "on")
            continue
        mend = f"set --feature-gates={gate}=true on API server, scheduler and controller manager"
        if feature == TAINTS and minor < _ON_BY_DEFAULT:
            mend += f", and on the API server --runtime-config={_GROUP}/v1alpha3=true"
        yield warn(f"feature gate {gate}", f"off: {_WITHOUT[feature]}", "on", mend)
    old = minor < _ON_BY_DEFAULT and served is not None
    if old and TAINTS in kept and "v1alpha3" not in (served or ()):
        yield fail(
            f"{_GROUP}/v1alpha3",
            "not served, though DRADeviceTaints is on: the scheduler waits for DeviceTaintRules "
            "and schedules no pod at all",
            "served",
            f"set --runtime-config={_GROUP}/v1alpha3=true on the API server",
        )


def judge_rights(missing: Sequence[Right], user: str) -> Finding:
    check = "rights (RBAC)"
    if not missing:
        return ok(check, f"{user} may do all that the plugin does")
    lacks = ", ".join(f"{right.verb} {right.resource}" for right in missing)
    return fail(
        check,
        f"{user} may not: {lacks}",
        "every verb of the ClusterRole aliquot-node",
        "apply the installation's RBAC and bind it to this account; to check the plugin's own "
        "account, run this in its pod or give its --kubeconfig",
    )


# Asking ----------------------------------------------------------------------------------


async def check(settings: Settings) -> list[Finding]:
    """Find the API server and ask it."""
    try:
        client = KubeClient.from_environment(settings.kubeconfig)
    except KubeConfigError as error:
        mend = "give --kubeconfig, set KUBECONFIG, or run in the plugin's pod"
        return [fail("API server", str(error), "a way to the API server", mend)]
    async with client:
        return await ask(client, settings)


async def ask(client: KubeClient, settings: Settings) -> list[Finding]:
    """Stops at the first thing without which the rest cannot be asked."""
    try:
        await client.get("/version", timeout=5)
        minor, patch = await server_version(client)
    except ApiError as error:
        mend = "mend the network, the address or the credentials in the kubeconfig"
        return [fail("API server", str(error), "an answer within 5 s", mend)]
    findings = [ok("API server", client.server), judge_version(minor, patch)]
    if findings[-1].level == "fail":
        return findings
    findings.append(await _node(client, settings.node_name))
    findings += await _features(client, settings, minor)
    findings.append(await _rights(client, settings, minor))
    return findings


async def _node(client: KubeClient, name: str) -> Finding:
    try:
        await client.get(f"/api/v1/nodes/{name}")
    except ApiError as error:
        return warn(
            "node object",
            str(error),
            f"a Node {name}: it owns the ResourceSlices, and the scheduler goes by its name",
            "give the name of the Node object with --node-name",
        )
    return ok("node object", name)


async def _features(client: KubeClient, settings: Settings, minor: int) -> list[Finding]:
    try:
        kept = await probe(client, settings.driver_name, settings.node_name)
        served = await _served(client)
    except ApiError as error:
        mend = "let this account create resourceslices (nothing is stored: dryRun=All)"
        return [fail("feature gates", str(error), "the answer to a dry run", mend)]
    return list(judge_features(kept, minor, served))


async def _served(client: KubeClient) -> tuple[str, ...] | None:
    try:
        group = await client.get(f"/apis/{_GROUP}")
    except ApiError:
        return None
    return tuple(str(each["version"]) for each in group.get("versions") or ())


async def _rights(client: KubeClient, settings: Settings, minor: int) -> Finding:
    wanted = needed_rights(settings.driver_name, minor, settings.claim_cache)
    try:
        missing = [right for right in wanted if not await _allowed(client, right)]
    except ApiError as error:
        mend = "use an API server with authorization.k8s.io, or compare with the ClusterRole"
        return warn("rights (RBAC)", f"cannot be asked: {error}", "an answer", mend)
    return judge_rights(missing, await _user(client))


async def _allowed(client: KubeClient, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.name,
    }
    kind = "SelfSubjectAccessReview"
    answer = await client.create(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "spec": {"resourceAttributes": attributes},
        },
    )
    return bool(answer["status"].get("allowed"))


async def _user(client: KubeClient) -> str:
    """The account in use, as the API server names it."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    except ApiError:
        return "this account"
    return str(answer["status"]["userInfo"].get("username") or "this account")
