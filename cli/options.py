"""What several commands take: checks of values, and the options that place a node's folders."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from driver.settings import DEFAULT_DRIVER, Settings

PATH = click.Path(path_type=Path, readable=False)  # our own errors say what to do
TABLE_OR_JSON = click.option(
    "--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True
)

_SUBDOMAIN = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_F = TypeVar("_F", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A range has both ends here, so that "inf" is outside; "nan" would be in every range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(
                f"{value!r} is not a number in the range {self._describe_range()}.", param, ctx
            )
        return found


SECONDS = Number(0.1, 86_400)


def subdomain(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """A name as nodes and drivers have it (RFC 1123, ``IsDNS1123Subdomain``)."""
    if value is not None and not _SUBDOMAIN.fullmatch(value):
        raise click.BadParameter(
            f"{value!r} is not a DNS name: lower-case letters, digits, inner dashes and dots",
            ctx,
            param,
        )
    return value


def driver_name(command: _F) -> _F:
    return click.option(
        "--driver-name", default=DEFAULT_DRIVER, show_default=True, callback=subdomain
    )(command)


def simulate_root(command: _F) -> _F:
    """Absolute, because containers get device nodes and files by their paths."""
    return click.option(
        "--simulate-root",
        type=PATH,
        default=Settings.simulate_root,
        show_default=True,
        callback=lambda _ctx, _param, value: value.absolute(),
        help="Folder of the simulated hardware.",
    )(command)


def mps_socket(command: _F) -> _F:
    return click.option(
        "--mps-socket",
        type=PATH,
        default=Settings.mps_socket,
        show_default=True,
        callback=lambda _ctx, _param, value: value if value and value.name else None,
        help="Of the node's MPS supervisor; empty: no shares by MPS.",
    )(command)


def nvidia_ctk(command: _F) -> _F:
    return click.option(
        "--nvidia-ctk",
        type=PATH,
        metavar="PROGRAM",
        help="nvidia-ctk of the NVIDIA Container Toolkit, whose hooks containers then get; at the "
        "same path on the host. Default: the one of the driver root, if there is one.",
    )(command)


def cgroup_root(command: _F) -> _F:
    return click.option(
        "--cgroup-root",
        type=PATH,
        default=Settings.cgroup_root,
        show_default=True,
        help="Where the host's cgroups are: memory of pods is limited there (R615, cgroup v2).",
    )(command)


def kubelet_folders(command: _F) -> _F:
    """``--kubelet-root``, ``--plugin-dir``, ``--cdi-dir``, with the defaults of ``node run``."""
    for option in (
        click.option(
            "--cdi-dir", type=PATH, default=Settings.cdi_dir, show_default=True,
            help="Where the plugin writes CDI specs.",
        ),
        click.option(
            "--plugin-dir", type=PATH, help="Default: plugins/DRIVER below the kubelet root."
        ),
        click.option(
            "--kubelet-root", type=PATH, default=Settings.kubelet_root, show_default=True
        ),
    ):  # fmt: skip
        command = option(command)
    return command
