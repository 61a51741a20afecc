"""The command ``aliquot``: thin fronts; each loads only what it needs."""

import importlib
import io
import sys

import click

# name → (module, attribute, one line for --help); imported only when it is called
_COMMANDS = {
    "node": ("cli.node", "node", "On a GPU node: run the plugin, show what is prepared."),
    "render": ("cli.render", "render", "Print the ResourceSlices of a node, offline."),
    "doctor": ("cli.doctor", "doctor", "Check this node and say how to mend each finding."),
    "demo": ("cli.demo", "demo", "The whole way on simulated hardware, without a cluster."),
    "map": ("cli.map", "map_", "Draw the cards of the cluster and who holds them."),
    "mps": ("cli.mps", "mps", "On a GPU node: keep MPS control daemons, show them."),
    "plan": ("cli.plan", "plan", "Find the order of partitions for a mix of claims."),
    "sim": ("cli.sim", "sim", "Make simulated cards fail and recover."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in sorted(_COMMANDS)])


@click.command(cls=_Lazy)
@click.version_option(package_name="aliquot", prog_name="aliquot")
def main() -> None:
    """Share NVIDIA GPUs between pods: enforced, or refused."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a bar shows "?"
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
