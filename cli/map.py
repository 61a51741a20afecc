"""``aliquot map``: the cards of the cluster, one bar a card."""

import asyncio
from typing import Any

import click

from cli.options import driver_name

_API = "/apis/resource.k8s.io/v1"


@click.command("map")
@click.option("--kubeconfig", help="Default: $KUBECONFIG, the service account, ~/.kube/config.")
@click.option("--node", help="Only the cards of this node.")
@driver_name
def map_(kubeconfig: str | None, node: str | None, driver_name: str) -> None:
    """Draw the cards of the cluster: who holds them, which are tainted.

    Needs the right to list resourceslices and, in all namespaces, resourceclaims.
    """
    from cli import drawing  # noqa: PLC0415 - keeps --help fast
    from kubeletplugin.kube import ApiError  # noqa: PLC0415
    from kubeletplugin.kubeconfig import KubeConfigError  # noqa: PLC0415

    try:
        slices, claims = asyncio.run(_read(kubeconfig, node, driver_name))
    except (ApiError, KubeConfigError) as error:
        raise click.ClickException(str(error)) from error
    found = drawing.cards(slices, claims, driver_name)
    if not found:
        where = f" on node {node}" if node else ""
        raise click.ClickException(
            f"driver {driver_name} has published no cards{where}; `aliquot doctor` on a GPU node "
            "says why"
        )
    click.echo("\n".join(drawing.draw(found)))


async def _read(
    kubeconfig: str | None, node: str | None, driver: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from kubeletplugin.kube import KubeClient  # noqa: PLC0415

    fields = f"spec.driver={driver}" + (f",spec.nodeName={node}" if node else "")
    async with KubeClient.from_environment(kubeconfig) as client:
        slices, _ = await client.list_pages(f"{_API}/resourceslices", [("fieldSelector", fields)])
        claims, _ = await client.list_pages(f"{_API}/resourceclaims")
    return slices, claims
