"""``aliquot render``: the objects of a node or of the installation, offline."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cli.options import PATH, subdomain
from driver.settings import DEFAULT_DRIVER

_OLDEST = 34  # minor of the oldest Kubernetes that is supported; as cli.checks.cluster.MINIMUM
_FEATURES = ("taints", "counters", "sharing")  # kubeletplugin.probe.FEATURES


def _features(ctx: click.Context, param: click.Parameter, value: str) -> frozenset[str]:
    """``taints,counters``: a set of words."""
    found = frozenset(word.strip() for word in value.split(",") if word.strip())
    unknown = sorted(found.difference(_FEATURES))
    if unknown:
        raise click.BadParameter(
            f"no feature {', '.join(unknown)}; known: {', '.join(_FEATURES)}", ctx, param
        )
    return found


def _version(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """``1.35`` or ``1.36.3``: minor and patch."""
    match = re.fullmatch(r"v?1\.(\d{1,3})(?:\.(\d{1,3}))?", value, re.ASCII)
    if match is None:
        raise click.BadParameter("want a version such as 1.35 or 1.36.3", ctx, param)
    if int(match[1]) < _OLDEST:
        why = f"{value} has no resource.k8s.io/v1; supported are 1.{_OLDEST} and newer"
        raise click.BadParameter(why, ctx, param)
    return int(match[1]), int(match[2] or 0)


def _resource(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from cli.classes import resource_problem  # noqa: PLC0415

    problem = "" if value is None else resource_problem(value)
    if problem:
        raise click.BadParameter(f"{value!r} {problem}", ctx, param)
    return value


def _modes(ctx: click.Context, param: click.Parameter, value: str | None) -> Sequence[str] | None:
    """``gpu,mig``: an order of words."""
    from api.policy import MODES  # noqa: PLC0415

    if value is None:
        return None
    found = [word.strip() for word in value.split(",")]
    for i, word in enumerate(found):
        if word not in MODES:
            raise click.BadParameter(f"no mode {word!r}; known: {', '.join(MODES)}", ctx, param)
        if word in found[:i]:
            raise click.BadParameter(f"{word} stands there twice", ctx, param)
    return found


@click.command()
@click.argument("profile", required=False)
@click.option("--count", type=int, default=8, show_default=True, help="How many cards.")
@click.option("--node-name", default="node-1", show_default=True, callback=subdomain)
@click.option("--driver-name", default=DEFAULT_DRIVER, show_default=True, callback=subdomain)
@click.option("--config", "policy_file", type=PATH, help="Node policy file (YAML).")
@click.option(
    "--features",
    callback=_features,
    default=",".join(_FEATURES),
    show_default=True,
    help="What the cluster keeps of the optional fields.",
)
@click.option(
    "--kubernetes",
    "version",
    metavar="VERSION",
    callback=_version,
    default="1.36.3",
    show_default=True,
    help="The cluster's version: below 1.36.3 shared devices stand alone on their cards.",
)
@click.option(
    "--modes",
    metavar="MODE,…",
    callback=_modes,
    help="Instead of a policy file: what is allowed on every card, as in gpu,mig.",
)
@click.option(
    "--mig-mode", is_flag=True, help="The cards are in MIG mode (Ampere is cut up only then)."
)
@click.option(
    "--classes",
    is_flag=True,
    help="The DeviceClasses instead: with PROFILE also one for each kind of partition.",
)
@click.option(
    "--extended-resource-name",
    metavar="NAME",
    callback=_resource,
    help="With --classes: let pods ask for whole cards by this resource (KEP-5004).",
)
@click.option(
    "--extended-resources/--no-extended-resources",
    default=True,
    show_default=True,
    help="With --classes PROFILE: let pods ask by nvidia.com/gpu and nvidia.com/mig-….",
)
@click.option(
    "--output",
    "-o",
    type=click.Choice(["yaml", "json", "table"]),
    default="yaml",
    show_default=True,
)
def render(
    profile: str | None,
    classes: bool,
    extended_resource_name: str | None,
    extended_resources: bool,
    output: str,
    **node: Any,
) -> None:
    """Print the ResourceSlices that a node with cards of PROFILE publishes.

    Nothing is contacted and nothing is left behind. PROFILE is a model of card, as in h100-80gb.
    """
    if classes:
        objects = _classes(
            node["driver_name"], profile, extended_resource_name, extended=extended_resources
        )
    elif extended_resource_name is not None:
        raise click.UsageError("--extended-resource-name belongs to a class: add --classes")
    elif profile is None:
        raise click.UsageError(f"which PROFILE? Known: {_known()}")
    else:
        policy = _policy(node.pop("policy_file"), node.pop("modes"), node["node_name"])
        objects = _slices(profile, policy, **node)
    click.echo("\n".join(_PRINT[output](objects)))


def _known() -> str:
    from driver.sim.profiles import known  # noqa: PLC0415 - keeps --help fast

    return known()


def _classes(
    driver: str, board: str | None, whole_resource: str | None, *, extended: bool
) -> list[dict[str, Any]]:
    from cli.classes import WHOLE_RESOURCE, all_classes  # noqa: PLC0415

    if board is None:
        return all_classes(driver, (), whole_resource, extended=False)
    from cli import offline  # noqa: PLC0415

    try:
        profiles = offline.mig_profiles(board)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    whole = whole_resource or (WHOLE_RESOURCE if extended else None)
    return all_classes(driver, profiles, whole, extended=extended)


def _slices(
    profile: str,
    policy: Any,
    *,
    count: int,
    mig_mode: bool,
    features: frozenset[str],
    version: tuple[int, int],
    **names: str,
) -> list[dict[str, Any]]:
    from cli import offline  # noqa: PLC0415 - NVML and the simulator
    from driver.plan.layout import cluster_features  # noqa: PLC0415
    from kubeletplugin.plan_publish import Identity  # noqa: PLC0415
    from kubeletplugin.publish_checks import PublishError  # noqa: PLC0415

    try:
        found = offline.inventory(profile, count, names["node_name"], mig_mode=mig_mode)
        owner = Identity(names["driver_name"], names["node_name"])
        able = cluster_features(features, *version)
        return offline.resource_slices(found, policy, able, owner)
    except (ValueError, PublishError) as error:
        raise click.ClickException(str(error)) from error


def _policy(policy_file: Path | None, modes: Sequence[str] | None, node_name: str) -> Any:
    from api.policy import GpuPolicy, GpuRule, GpuSelector, NodePolicy  # noqa: PLC0415
    from driver.errors import PolicyError  # noqa: PLC0415
    from driver.watching import read_policy  # noqa: PLC0415

    if modes and policy_file:
        raise click.UsageError("--modes stands instead of --config: give one of them")
    if modes:
        return NodePolicy((GpuRule(GpuSelector(), GpuPolicy(tuple(modes))),))
    try:
        return read_policy(policy_file, node_name)
    except PolicyError as error:
        raise click.ClickException("\n  ".join([f"{policy_file}:", *error.problems])) from error


def _yaml(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    import yaml  # noqa: PLC0415

    return [yaml.safe_dump_all(objects, sort_keys=False, width=99).rstrip()]


def _json(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """One object, or the List that kubectl prints and takes."""
    if len(objects) == 1:
        return [json.dumps(objects[0], indent=2)]
    return [json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2)]


def _table(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    from cli.drawing import attribute  # noqa: PLC0415
    from cli.text import table  # noqa: PLC0415

    if objects[0]["kind"] == "DeviceClass":
        rows = [
            (each["metadata"]["name"], found["cel"]["expression"])
            for each in objects
            for found in each["spec"]["selectors"]
        ]
        return table(("CLASS", "SELECTOR"), rows)
    columns = ("type", "productName", *_PLACE.values())
    lines = [
        (
            each["metadata"]["name"],
            device["name"],
            attribute(device, "profile") or attribute(device, "type"),
            attribute(device, "productName"),
            device["capacity"].get("memory", {}).get("value", ""),
            *(attribute(device, name) for name in columns[2:]),
        )
        for each in objects
        for device in each["spec"].get("devices") or ()
    ]
    return table(("RESOURCESLICE", "DEVICE", "TYPE", "PRODUCT", "MEMORY", *_PLACE), lines)


_PLACE = {
    "PCI": "resource.kubernetes.io/pciBusID",
    "ROOT": "resource.kubernetes.io/pcieRoot",
    "NUMA": "resource.kubernetes.io/numaNode",
    "NVLINK": "nvlinkGroup",
}
_PRINT = {"yaml": _yaml, "json": _json, "table": _table}
