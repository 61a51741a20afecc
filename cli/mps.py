"""``aliquot mps``: the node's MPS supervisor, and a look at what it serves."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.options import PATH, TABLE_OR_JSON
from mps.settings import Settings

_DEFAULT = Settings()
_SECONDS = float  # ranges are in ``Settings.mistakes``, also for `python -m mps`
_F = TypeVar("_F", bound=Callable[..., Any])


def _run_dir(command: _F) -> _F:
    for option in (
        click.option("--socket", type=PATH, help="Default: supervisor.sock in the run directory."),
        click.option("--run-dir", type=PATH, default=_DEFAULT.run_dir, show_default=True),
    ):
        command = option(command)
    return command


@click.group()
def mps() -> None:
    """The MPS supervisor: one control daemon for each shared card."""


def _none_or_path(ctx: click.Context, param: click.Parameter, value: str) -> Path | None:
    return None if value == "none" else Path(value)


@mps.command()
@_run_dir
@click.option(
    "--state-dir",
    type=PATH,
    default=_DEFAULT.state_dir,
    show_default=True,
    help="What is served, kept over reboots.",
)
@click.option(
    "--control-program",
    "program",
    type=PATH,
    default=_DEFAULT.program,
    show_default=True,
    help="nvidia-cuda-mps-control, as seen from the driver root.",
)
@click.option(
    "--driver-root",
    type=PATH,
    default=_DEFAULT.driver_root,
    show_default=True,
    help="Root directory of the daemons; the run directory has to be in it too.",
)
@click.option(
    "--cgroup-root",
    default=str(_DEFAULT.cgroup_root),
    show_default=True,
    callback=_none_or_path,
    help="The host's cgroups; daemons live there apart from this pod. none: they end with it.",
)
@click.option(
    "--host-shm",
    "private_shm",
    flag_value=False,
    default=True,
    type=bool,
    help="Daemons use the /dev/shm they find, not one a card.",
)
@click.option("--start-timeout", "start_timeout_s", type=_SECONDS, default=15.0, show_default=True)
@click.option(
    "--probe-interval", "probe_interval_s", type=_SECONDS, default=10.0, show_default=True
)
@click.option("--probe-timeout", "probe_timeout_s", type=_SECONDS, default=5.0, show_default=True)
@click.option(
    "--settle",
    "settle_s",
    type=_SECONDS,
    default=5.0,
    show_default=True,
    help="A failure is shown for so long after the daemon is back.",
)
@click.option(
    "--quit-timeout",
    "quit_timeout_s",
    type=int,
    default=5,
    show_default=True,
    help="Seconds for clients that still run when a card is stopped.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def serve(log_level: str, **options: Any) -> None:
    """Keep a control daemon for each shared card until SIGTERM. The daemons go on after that."""
    from mps import main  # noqa: PLC0415 - `mps status` needs none of it

    settings = Settings(**options)
    if mistakes := [*settings.mistakes()]:
        raise click.UsageError("; ".join(mistakes))
    main.set_up_log(log_level)
    sys.exit(main.run(settings))


@mps.command()
@_run_dir
@TABLE_OR_JSON
def status(run_dir: Path, socket: Path | None, output: str) -> None:
    """Show what runs on which card, with which limits.

    The exit status is 1 if the supervisor does not answer, cannot start daemons, or a card is not
    served.
    """
    from mps.client import MpsClient  # noqa: PLC0415
    from mps.protocol import MpsError, as_data  # noqa: PLC0415

    client = MpsClient(Settings(socket=socket, run_dir=run_dir).socket_path)
    try:
        info, cards = client.info(), client.cards()
        claims = {card.spec.gpu: client.namespaces(card.spec.gpu) for card in cards}
    except MpsError as error:
        raise click.ClickException(str(error)) from error
    found: dict[str, Any] = {
        "supervisor": as_data(info),
        "cards": [
            {**as_data(card), "namespaces": [as_data(one) for one in claims[card.spec.gpu]]}
            for card in cards
        ],
    }
    text = json.dumps(found, indent=2) if output == "json" else "\n".join(_as_text(found))
    click.echo(text)
    if info.failure or not all(card.running for card in cards):
        click.get_current_context().exit(1)


def _as_text(found: dict[str, Any]) -> list[str]:
    from cli.text import plural, state, table  # noqa: PLC0415

    own, cards = found["supervisor"], found["cards"]
    lines = [
        f"supervisor: process {own['pid']} since {_time(own['started'])}",
        f"control program: {own['program']}{_abilities(own)}",
    ]
    if own["failure"]:
        lines.append(f"{state('fail')}  {own['failure']}")
    lines.append(f"served: {plural(len(cards), 'card')}")
    if cards:
        head = ("CARD", "DAEMON", "SINCE", "MEMORY", "COMPUTE", "PROTOCOL", "RESTARTS", "STATE")
        rows: list[Sequence[str]] = [row for card in cards for row in _rows(card)]
        lines += ["", *table(head, rows)]
    for card in cards:
        if card["failure"]:
            lines += ["", f"{card['spec']['gpu']}: {card['failure']}"]
    return lines


def _abilities(own: dict[str, Any]) -> str:
    """What is known of the control program; nothing of one that is missing or does not work."""
    if not own["protocols"]:
        return ": cannot be used, so no card can be shared by MPS"
    users = "several users at once" if own["multi_user"] else "one user at a time"
    protocols = " and ".join(map(str, own["protocols"]))
    return f", version {own['version'] or 'unknown'}, protocol {protocols}, {users}"


def _rows(card: dict[str, Any]) -> list[Sequence[str]]:
    """The card, then its namespaces."""
    from cli.text import state  # noqa: PLC0415

    word = "ok" if card["running"] and not card["failure"] else "warn"
    first = (
        card["spec"]["gpu"],
        str(card["pid"] or "-"),
        _time(card["started"]) if card["started"] else "-",
        *_limits(card["spec"]),
        str(card["spec"]["protocol"]),
        str(card["restarts"]),
        state(word if card["running"] else "fail"),
    )
    claims = [
        (f"  {one['name']}", "", "", *_limits(one), "", "", "") for one in card["namespaces"]
    ]
    return [first, *claims]


def _limits(of: dict[str, Any]) -> tuple[str, str]:
    memory, percent = of["memory_limit"], of["compute_percent"]
    return (
        "-" if memory is None else f"{memory >> 20}Mi",
        "-" if percent is None else f"{percent}%",
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
