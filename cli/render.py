"""``aliquot render``: the objects of a node or of the installation, offline."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cli.options import PATH, subdomain
from driver.settings import DEFAULT_DRIVER

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
@click.option("--classes", is_flag=True, help="The DeviceClasses instead. Needs no PROFILE.")
@click.option(
    "--extended-resource-name",
    metavar="NAME",
    help="With --classes: let pods ask by this resource, as in nvidia.com/gpu (KEP-5004).",
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
    output: str,
    **node: Any,
) -> None:
    """Print the ResourceSlices that a node with cards of PROFILE publishes.

    Nothing is contacted and nothing is left behind. PROFILE is a model of card, as in h100-80gb.
    """
    if classes:
        objects = [_class(node["driver_name"], extended_resource_name)]
    elif extended_resource_name:
        raise click.UsageError("--extended-resource-name belongs to a class: add --classes")
    elif profile is None:
        raise click.UsageError(f"which PROFILE? Known: {_known()}")
    else:
        objects = _slices(profile, **node)
    click.echo("\n".join(_PRINT[output](objects)))


def _known() -> str:
    from driver.sim.profiles import known  # noqa: PLC0415 - keeps --help fast

    return known()


def _class(driver: str, extended: str | None) -> dict[str, Any]:
    from cli.classes import device_class, whole_card_selector  # noqa: PLC0415

    return device_class(driver, whole_card_selector(driver), extended)


def _slices(
    profile: str,
    *,
    count: int,
    node_name: str,
    driver_name: str,
    policy_file: Path | None,
    features: frozenset[str],
) -> list[dict[str, Any]]:
    from cli import offline  # noqa: PLC0415 - NVML and the simulator
    from driver.errors import PolicyError  # noqa: PLC0415
    from driver.watching import read_policy  # noqa: PLC0415
    from kubeletplugin.plan_publish import Identity  # noqa: PLC0415
    from kubeletplugin.publish_checks import PublishError  # noqa: PLC0415

    try:
        policy = read_policy(policy_file, node_name)
    except PolicyError as error:
        raise click.ClickException("\n  ".join([f"{policy_file}:", *error.problems])) from error
    try:
        found = offline.inventory(profile, count, node_name)
        owner = Identity(driver_name, node_name)
        return offline.resource_slices(found, policy, features, owner)
    except (ValueError, PublishError) as error:
        raise click.ClickException(str(error)) from error


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
            *(attribute(device, name) for name in columns[:2]),
            device["capacity"]["memory"]["value"],
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
