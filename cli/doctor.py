"""``aliquot doctor``: what of this node would keep claims from being prepared, and the cure."""

import asyncio
import contextlib
import dataclasses
import json
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import (
    PATH,
    TABLE_OR_JSON,
    cgroup_root,
    driver_name,
    kubelet_folders,
    mps_socket,
    nvidia_ctk,
    simulate_root,
    subdomain,
)
from driver.settings import Settings

if TYPE_CHECKING:
    from cli.checks.finding import Finding
    from driver.model.gpu import Inventory

_CONTAINERD = Path("/etc/containerd/config.toml")
_CRIO = Path("/etc/crio")


@click.command()
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    default=lambda: socket.gethostname().lower(),
    show_default="this host's name",
    callback=subdomain,
)
@driver_name
@kubelet_folders
@click.option("--registry-dir", type=PATH, help="Default: plugins_registry of the kubelet root.")
@click.option("--driver-root", type=PATH, default=Settings.driver_root, show_default=True)
@click.option("--simulate", metavar="PROFILE[:COUNT]", help="Look at simulated cards.")
@simulate_root
@click.option("--config", "policy_file", type=PATH, help="Node policy file (YAML).")
@click.option("--kubeconfig", help="Default: the service account, else the usual places.")
@click.option("--claim-cache", is_flag=True, help="The plugin runs with --claim-cache.")
@click.option("--instance", envvar="POD_UID", help="As for `aliquot node run`.")
@nvidia_ctk
@cgroup_root
@mps_socket
@click.option("--containerd-config", type=PATH, default=_CONTAINERD, show_default=True)
@click.option("--crio-config", type=PATH, default=_CRIO, show_default=True)
@TABLE_OR_JSON
def doctor(containerd_config: Path, crio_config: Path, output: str, **options: Any) -> None:
    """Check this node and say how to mend each finding.

    Changes nothing. Give the options that the plugin is started with. The exit status is 1 if a
    check fails; warnings alone leave it 0.
    """
    settings = Settings(**options)
    _check_simulate(settings.simulate)
    found = _examine(settings, containerd_config, crio_config)
    click.echo("\n".join(_as_json(found) if output == "json" else _as_text(found)))
    if any(each.level == "fail" for findings in found.values() for each in findings):
        click.get_current_context().exit(1)


def _check_simulate(what: str | None) -> None:
    from driver.sim.profiles import parse_simulate  # noqa: PLC0415 - keeps --help fast

    if what is not None:
        try:
            parse_simulate(what)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--simulate") from error


def _examine(
    settings: Settings, containerd_config: Path, crio_config: Path
) -> dict[str, list["Finding"]]:
    from cli.checks import (  # noqa: PLC0415
        cluster,
        hardware,
        kubelet,
        policy,
        runtime,
        sharing,
    )

    return {
        hardware.AREA: _hardware(settings),
        sharing.AREA: _sharing(settings),
        policy.AREA: _policy(settings),
        runtime.AREA: runtime.check(settings.cdi_dir, containerd_config, crio_config),
        kubelet.AREA: kubelet.check(settings),
        kubelet.LEFTOVERS: kubelet.check_leftovers(settings),
        cluster.AREA: asyncio.run(cluster.check(settings)),
    }


def _hardware(settings: Settings) -> list["Finding"]:
    """A simulated node is looked at where it is; it is not made."""
    from cli.checks import hardware  # noqa: PLC0415
    from cli.checks.finding import fail  # noqa: PLC0415
    from driver.sim.store import SimulationError  # noqa: PLC0415

    try:
        with _cards(settings):
            return hardware.check(settings)
    except SimulationError as error:
        mend = "start `aliquot node run --simulate …` once, or name its --simulate-root"
        found = str(error).removeprefix("simulated hardware: ")
        return [fail("simulated hardware", found, "a simulated node with these cards", mend)]


def _sharing(settings: Settings) -> list["Finding"]:
    from cli.checks import sharing  # noqa: PLC0415
    from driver.sim.store import SimulationError  # noqa: PLC0415

    try:
        with _cards(settings):
            return sharing.check(settings)
    except SimulationError:
        return []  # said where cards are looked at


def _policy(settings: Settings) -> list["Finding"]:
    from cli.checks import hardware, policy  # noqa: PLC0415

    def look() -> "Inventory":
        with _cards(settings):
            return hardware.discover(settings)

    return policy.check(settings.policy_file, settings.node_name, look)


@contextlib.contextmanager
def _cards(settings: Settings) -> Iterator[None]:
    """NVML talks to the simulated cards, where the node has such."""
    from driver.sim.profiles import parse_simulate  # noqa: PLC0415
    from driver.sim.seam import install, uninstall  # noqa: PLC0415
    from driver.sim.setup import check_same  # noqa: PLC0415

    if not settings.simulate:
        yield
        return
    try:
        check_same(settings.simulate_root, *parse_simulate(settings.simulate))
        install(settings.simulate_root)
        yield
    finally:
        uninstall()


def _as_json(found: Mapping[str, Sequence["Finding"]]) -> list[str]:
    findings = [
        {"area": area, **dataclasses.asdict(each)} for area, some in found.items() for each in some
    ]
    return [json.dumps(findings, indent=2, ensure_ascii=False)]


def _as_text(found: Mapping[str, Sequence["Finding"]]) -> list[str]:
    lines: list[str] = []
    for area, findings in found.items():
        lines += [click.style(area, bold=True), *_lines_of(findings)]
    levels = Counter(each.level for findings in found.values() for each in findings)
    return [*lines, "", ", ".join(f"{levels[level]} {level}" for level in ("ok", "warn", "fail"))]


def _lines_of(findings: Sequence["Finding"]) -> Iterator[str]:
    """What is wanted, and how to mend it, stands once below findings that have it in common."""
    from cli.text import state  # noqa: PLC0415

    for (wanted, mend), some in groupby(findings, lambda each: (each.wanted, each.mend)):
        for each in some:
            pad = " " * (5 - len(each.level))
            yield f"  {state(each.level)}{pad} {each.check}: {each.found}"
        details = {"wanted": wanted, "mend": mend}
        yield from (f"        {key:7} {text}" for key, text in details.items() if text)
