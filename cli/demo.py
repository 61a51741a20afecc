"""``aliquot demo``: the whole way of a claim on simulated hardware, without a cluster."""

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from driver.settings import DEFAULT_DRIVER

_ENDED_S = 0.1  # until the end of a child is known: its broken connection may be seen before
_SHORT = 40  # bytes of a folder below which every socket path fits (unix(7): 107)


@click.command()
@click.option("--profile", default="h100-80gb", show_default=True, help="Model of the cards.")
@click.option("--count", type=int, default=8, show_default=True, help="How many cards.")
@click.option("--keep", is_flag=True, help="Keep the folder with logs and state, and name it.")
def demo(profile: str, count: int, keep: bool) -> None:
    """Show a claim's whole way: publish, allocate, prepare, inject, unprepare.

    Needs no root, no cluster and no GPU: an embedded API server and the plugin run as processes
    of their own, and talk over real Unix sockets. The exit status is 0 only if everything was as
    it should be.
    """
    from driver.sim.profiles import parse_simulate  # noqa: PLC0415 - keeps --help fast

    try:
        parse_simulate(f"{profile}:{count}")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    folder = Path(tempfile.mkdtemp(prefix="aq-", dir=_base()))
    try:
        status = asyncio.run(_run(folder, profile, count))
    finally:
        if keep:
            click.echo(f"logs and state are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


def _base() -> str:
    """The folder for temporary files, unless sockets below it would have too long a path."""
    usual = tempfile.gettempdir()
    return usual if len(usual.encode()) <= _SHORT else "/tmp"  # noqa: S108 - mkdtemp makes it 0700


async def _run(folder: Path, profile: str, count: int) -> int:
    """Children are stopped outside of the task that signals cancel, so none outlives us."""
    from cli.children import Children  # noqa: PLC0415
    from cli.demo_story import Demo  # noqa: PLC0415

    start = time.monotonic()
    caught: list[int] = []
    async with Children(folder) as children:
        story = Demo(folder, profile, count, DEFAULT_DRIVER, children, click.echo)
        task = asyncio.create_task(story.run())
        _on_signals(task, caught)
        try:
            await task
        except asyncio.CancelledError:
            click.echo("\nstopped; cleaning up", err=True)
            return 128 + caught[0] if caught else 1
        except Exception as error:
            if not isinstance(error, _expected()):
                raise
            await asyncio.sleep(_ENDED_S)
            why = next(children.ended(), None) or _words(error)
            click.echo(f"\n{click.style('demo failed', fg='red')}: {why}", err=True)
            for tail in children.tails():
                click.echo(tail, err=True)
            return 1
        finally:
            await story.stop_daemons()
    click.echo(f"\n{click.style('all as it should be', fg='green')}, {_seconds(start)}")
    return 0


def _on_signals(task: "asyncio.Task[None]", caught: list[int]) -> None:
    def stop(number: int) -> None:
        caught.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)


def _expected() -> tuple[type[Exception], ...]:
    """What may go wrong without a bug in the demo itself."""
    import grpc.aio  # noqa: PLC0415

    from cli.children import ChildError  # noqa: PLC0415
    from cli.demo_story import WrongError  # noqa: PLC0415
    from kubeletplugin.kube import ApiError  # noqa: PLC0415
    from kubeletplugin.testing.allocator import AllocationError  # noqa: PLC0415
    from kubeletplugin.testing.allocator_cel import SelectorError  # noqa: PLC0415

    return (
        *(AllocationError, ApiError, ChildError, SelectorError, WrongError),
        *(OSError, grpc.aio.AioRpcError),  # TimeoutError is an OSError
    )


def _words(error: Exception) -> str:
    """What went wrong; a call over gRPC in one line."""
    import grpc.aio  # noqa: PLC0415

    if isinstance(error, grpc.aio.AioRpcError):
        return f"a call of the plugin failed, {error.code().name}: {error.details()}"
    return str(error)


def _seconds(start: float) -> str:
    return f"{time.monotonic() - start:.1f} s"
