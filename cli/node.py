"""``aliquot node``: the plugin itself, and a look at what it holds."""

import signal
import sys
from typing import Any

import click

from cli.options import (
    PATH,
    SECONDS,
    cgroup_root,
    driver_name,
    mps_socket,
    nvidia_ctk,
    simulate_root,
    subdomain,
)
from cli.status import status
from driver.settings import Settings


@click.group()
def node() -> None:
    """On a GPU node: run the plugin, show what is prepared."""


node.add_command(status)


@node.command()
@click.option(
    "--node-name",
    required=True,
    envvar="NODE_NAME",
    callback=subdomain,
    help="Name of this Node object.",
)
@driver_name
@click.option("--simulate", metavar="PROFILE[:COUNT]", help="Simulated cards, as in h100-80gb:8.")
@simulate_root
@click.option(
    "--config",
    "policy_file",
    type=PATH,
    help="Node policy file (YAML). Without one every card has the modes gpu, mps and timeslice.",
)
@click.option("--kubeconfig", help="Default: the service account, else the usual places.")
@click.option("--kubelet-root", type=PATH, default=Settings.kubelet_root, show_default=True)
@click.option("--plugin-dir", type=PATH, help="Default: plugins/DRIVER below the kubelet root.")
@click.option(
    "--registry-dir", type=PATH, help="Default: plugins_registry below the kubelet root."
)
@click.option(
    "--cdi-dir",
    type=PATH,
    default=Settings.cdi_dir,
    show_default=True,
    help="A folder that the container runtime reads CDI specs from.",
)
@click.option(
    "--driver-root",
    type=PATH,
    default=Settings.driver_root,
    show_default=True,
    help="Where the NVIDIA driver is, as seen from here.",
)
@click.option("--host-driver-root", type=PATH, help="The same on the host, where that differs.")
@nvidia_ctk
@cgroup_root
@mps_socket
@click.option(
    "--http-address",
    default=Settings.http_address,
    show_default=True,
    help="host:port for /healthz, /readyz and /metrics; empty turns it off.",
)
@click.option(
    "--claim-cache",
    is_flag=True,
    help="Read claims from a watch. Small clusters only: it follows every claim of the cluster.",
)
@click.option("--instance", envvar="POD_UID", help="UID that names this instance's sockets.")
@click.option(
    "--health-interval", "health_interval_s", type=SECONDS, default=5.0, show_default=True
)
@click.option(
    "--refresh-interval", "refresh_interval_s", type=SECONDS, default=30.0, show_default=True
)
@click.option(
    "--reconcile-interval", "reconcile_interval_s", type=SECONDS, default=60.0, show_default=True
)
@click.option(
    "--watchdog-interval", "watchdog_interval_s", type=SECONDS, default=10.0, show_default=True
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def run(log_format: str, log_level: str, **options: Any) -> None:
    """Serve this node's claims until SIGTERM."""
    # The first process of a container is sent no signal that it does not handle, and what is
    # loaded below takes half a second.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from driver import logs, main  # noqa: PLC0415 - `node status` needs none of it

    logs.set_up(log_format, log_level)
    sys.exit(main.run(Settings(**options)))
