"""``aliquot sim``: change simulated hardware while the plugin runs on it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from cli.options import PATH
from driver.settings import Settings

_SMI = ("missing", "fails", "old", "unsupported", "silent")
_CARD = click.argument("index", type=click.IntRange(min=0), metavar="CARD")


@click.group()
@click.option(
    "--root",
    type=PATH,
    default=Settings.simulate_root,
    show_default=True,
    help="The folder given to --simulate-root.",
)
@click.pass_context
def sim(ctx: click.Context, root: Path) -> None:
    """Make simulated cards fail and recover. CARD is NVML's index, from 0.

    Processes that use the node see the change at their next call to NVML.
    """
    ctx.obj = root


def _do(change: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the simulator; its refusals become the command's."""
    from driver.sim.store import SimulationError  # noqa: PLC0415

    try:
        return change(*args, **kwargs)
    except (SimulationError, ValueError, IndexError, PermissionError) as error:
        raise click.ClickException(str(error)) from error


def _control() -> Any:
    from driver.sim import control  # noqa: PLC0415 - keeps --help fast

    return control


@sim.command()
@_CARD
@click.pass_obj
def lose(root: Path, index: int) -> None:
    """The card falls off the bus."""
    _do(_control().lose, root, index)


@sim.command()
@_CARD
@click.pass_obj
def restore(root: Path, index: int) -> None:
    """A lost card answers again."""
    _do(_control().restore, root, index)


@sim.command()
@_CARD
@click.argument("number", type=click.IntRange(min=0), metavar="XID")
@click.pass_obj
def xid(root: Path, index: int, number: int) -> None:
    """The card raises an XID event."""
    _do(_control().xid, root, index, number)


@sim.command()
@click.argument("call")
@click.argument("code", type=click.IntRange(min=1))
@click.option("--count", type=click.IntRange(min=1), help="Default: until `aliquot sim clear`.")
@click.option("--skip", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--card", type=click.IntRange(min=0), help="Default: every card.")
@click.pass_obj
def fault(
    root: Path, call: str, code: int, count: int | None, skip: int, card: int | None
) -> None:
    """CALL, such as nvmlDeviceGetUUID, answers the NVML return CODE.

    With --skip it goes well that often first; with --count it fails that often.
    """
    _do(_control().inject, root, call, code, count=count, skip=skip, gpu=card)


@sim.command()
@click.pass_obj
def clear(root: Path) -> None:
    """Forget every injected fault."""
    _do(_control().clear_faults, root)


@sim.command("recovery-action")
@_CARD
@click.argument("action", type=click.IntRange(0, 5))
@click.pass_obj
def recovery_action(root: Path, index: int, action: int) -> None:
    """What the card asks for: 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset."""
    _do(_control().set_recovery_action, root, index, action)


@sim.command()
@_CARD
@click.argument("pid", type=click.IntRange(min=1))
@click.argument("mib", type=click.IntRange(min=0))
@click.option("--mps", is_flag=True, help="It is a client of an MPS server.")
@click.option("--busy", type=click.IntRange(0, 100), default=0, help="Percent of the card's SMs.")
@click.option("--pod", metavar="UID", help="The pod that it belongs to.")
@click.option("--name", default="python3", show_default=True, help="Of its program.")
@click.pass_obj
def process(root: Path, /, index: int, pid: int, mib: int, **more: Any) -> None:
    """Process PID uses MIB of the card's memory."""
    control, kind = _control(), "mps" if more["mps"] else "compute"
    _do(control.set_process, root, index, pid, mib << 20, kind)
    _do(control.set_busy, root, index, pid, more["busy"])
    _do(control.place_process, root, pid, name=more["name"], pod=more["pod"])


@sim.command("nvidia-smi")
@click.argument("state", type=click.Choice(["ok", *_SMI]), metavar="STATE")
@click.pass_obj
def nvidia_smi(root: Path, state: str) -> None:
    """What the program does: ok; missing; fails; old: knows no compute-policy; unsupported: the
    card has no time slices; silent: refuses with exit status 0."""
    _do(_control().set_smi, root, state)


@sim.command()
@click.option("--permute-minors", is_flag=True, help="The cards get other device numbers.")
@click.pass_obj
def reboot(root: Path, permute_minors: bool) -> None:
    """The node starts anew: new boot id, volatile state is gone."""
    _do(_control().reboot, root, permute_minors=permute_minors)


@sim.command()
@click.pass_obj
def show(root: Path) -> None:
    """Print the state as JSON."""
    from driver.sim.store import Store  # noqa: PLC0415

    click.echo(json.dumps(dataclasses.asdict(_do(Store(root).read)), indent=2, default=str))
