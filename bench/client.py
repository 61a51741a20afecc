"""Times any DRA driver at its socket, or several of them in one run, claim by claim in turn.

    python -m bench.client --socket /var/lib/kubelet/plugins/gpu.example.com/dra.sock \
        --driver gpu.example.com --kubeconfig ~/.kube/config

It makes ResourceClaims, allocates them itself through the status subresource (which takes an
administrator's rights), calls the socket as the kubelet would, and deletes its claims. Devices
should be free: a driver that refuses double use refuses the claim.
"""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import grpc

from bench.calls import KINDS, BenchError, Socket, Times, connected, one_after_another
from bench.claims import Offer, named
from bench.stats import summary, table
from bench.stored import Stored, published, stored
from kubeletplugin.contract import ClaimRef
from kubeletplugin.kube import ApiError, KubeClient
from kubeletplugin.kubeconfig import KubeConfigError


@dataclass(frozen=True, slots=True)
class Target:
    """A driver to be timed. ``label`` names it in tables and is unique in a run."""

    label: str
    driver: str
    socket: Path


@dataclass(frozen=True, slots=True)
class Wish:
    """How much to measure."""

    count: int = 200
    outstanding: int = 0  # claims prepared before, and held until the end
    parallel: int = 0  # calls at once; as many devices must be free
    devices: tuple[str, ...] = ()  # none: all that are published
    node: str | None = None


@dataclass
class Measured:
    """Milliseconds of one driver."""

    times: Times
    filling: list[float]  # each prepare while the outstanding claims came to be
    at_once: float | None = None  # to the last answer
    each_at_once: list[float] | None = None


@contextmanager
def sockets(targets: Sequence[Target]) -> Iterator[list[Socket]]:
    """All of them connected. Raises BenchError."""
    with ExitStack() as stack:
        yield [stack.enter_context(connected(each.label, each.socket)) for each in targets]


async def measure(
    client: KubeClient, targets: Sequence[Target], wish: Wish, namespace: str = "default"
) -> Mapping[str, Measured]:
    """By label. Raises BenchError, ApiError, ValueError (devices), grpc.RpcError."""
    async with stored(client, namespace) as claims:
        with sockets(targets) as open_sockets:
            pairs = list(zip(targets, open_sockets, strict=True))
            offers = {each.label: await _offers(client, each, wish) for each in targets}
            held = {
                each.label: await claims.make(each.driver, offers[each.label], wish.outstanding)
                for each in targets
            }
            free = {label: _free(found, wish.outstanding) for label, found in offers.items()}
            refs = [await claims.make(t.driver, free[t.label], wish.count) for t in targets]
            filling = _fill([(socket, held[socket.label]) for socket in open_sockets])
            try:
                times = one_after_another(list(zip(open_sockets, refs, strict=True)))
                found = {label: Measured(times[label], filling[label]) for label in times}
                for target, socket in pairs if wish.parallel else ():
                    await _at_once(
                        claims, target, socket, free[target.label], wish, found[target.label]
                    )
            finally:
                _empty(open_sockets, held)
            return found


async def _offers(client: KubeClient, target: Target, wish: Wish) -> tuple[Offer, ...]:
    found = await published(client, target.driver, wish.node)
    return named(found, wish.devices) if wish.devices else found


def _free(offers: Sequence[Offer], outstanding: int) -> Sequence[Offer]:
    """What the outstanding claims leave; all, where they take every device anyway."""
    return offers[outstanding:] or offers


def _fill(work: Sequence[tuple[Socket, Sequence[ClaimRef]]]) -> Mapping[str, list[float]]:
    """Prepare claims that stay, the drivers in turn."""
    took: dict[str, list[float]] = {socket.label: [] for socket, _ in work}
    for claims in zip(*(refs for _, refs in work), strict=True):
        for (socket, _), ref in zip(work, claims, strict=True):
            took[socket.label].append(socket.paused_prepare(ref))
    return took


def _empty(open_sockets: Sequence[Socket], held: Mapping[str, Sequence[ClaimRef]]) -> None:
    for socket in open_sockets:
        for ref in held[socket.label]:
            socket.unprepare(ref)


async def _at_once(
    claims: Stored,
    target: Target,
    socket: Socket,
    free: Sequence[Offer],
    wish: Wish,
    found: Measured,
) -> None:
    refs = await claims.make(target.driver, free, wish.parallel)
    try:
        found.at_once, found.each_at_once = socket.prepare_at_once(refs)
    finally:
        for ref in refs:
            socket.unprepare(ref)


def report(found: Mapping[str, Measured]) -> str:
    """A table: a driver and a kind of call a row."""
    rows: list[list[object]] = []
    for label, measured in found.items():
        for kind in ("empty", *KINDS):
            values = measured.times.of(kind)
            if values:
                one = summary(values)
                rows.append(
                    [label, kind, one.n, *(f"{v:.2f}" for v in (one.p50, one.p90, one.p99))]
                )
        if measured.at_once is not None:
            together = len(measured.each_at_once or ())
            rows.append(
                [label, f"{together} at once", together, f"{measured.at_once:.0f}", "", ""]
            )
    return table(("driver", "call", "n", "p50 ms", "p90 ms", "p99 ms"), rows)


def as_json(found: Mapping[str, Measured]) -> dict[str, Any]:
    """The raw values, for later questions."""
    return {label: dataclasses.asdict(measured) for label, measured in found.items()}


@click.command(help=__doc__)
@click.option(
    "--socket",
    "paths",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="dra.sock of a driver; give it again for a second driver in the same run.",
)
@click.option("--driver", "drivers", multiple=True, required=True, help="One for each --socket.")
@click.option("--devices", default="auto", show_default=True, help="Names, or all published.")
@click.option("--node", help="Only devices that this node's ResourceSlices publish.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--kubeconfig", help="Default: the usual places.")
@click.option("--count", type=click.IntRange(1), default=200, show_default=True)
@click.option("--claims-outstanding", type=click.IntRange(0), default=0, show_default=True)
@click.option("--parallel", type=click.IntRange(0), default=0, help="Calls at once, afterwards.")
@click.option("--json", "json_", is_flag=True, help="Every single time, as JSON.")
def main(
    paths: tuple[Path, ...],
    drivers: tuple[str, ...],
    namespace: str,
    kubeconfig: str | None,
    json_: bool,
    **wish: Any,
) -> None:
    """See the module."""
    if len(paths) != len(drivers):
        raise click.UsageError(f"{len(paths)} --socket but {len(drivers)} --driver: give pairs")
    targets = [Target(d, d, path) for d, path in zip(drivers, paths, strict=True)]
    try:
        found = asyncio.run(_run(kubeconfig, targets, _wish(**wish), namespace))
    except (BenchError, ApiError, KubeConfigError, ValueError, grpc.RpcError) as error:
        click.echo(f"bench: {error}", err=True)
        sys.exit(1)
    click.echo(json.dumps(as_json(found)) if json_ else report(found))


def _wish(
    count: int, claims_outstanding: int, parallel: int, devices: str, node: str | None
) -> Wish:
    names = () if devices == "auto" else tuple(devices.split(","))
    return Wish(count, claims_outstanding, parallel, names, node)


async def _run(
    kubeconfig: str | None, targets: Sequence[Target], wish: Wish, namespace: str
) -> Mapping[str, Measured]:
    async with KubeClient.from_environment(kubeconfig) as client:
        return await measure(client, targets, wish, namespace)


if __name__ == "__main__":
    main()
