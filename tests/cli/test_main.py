import subprocess
import sys

import pytest

COMMANDS = ("demo", "doctor", "map", "mps", "node", "render", "sim")
HEAVY = ("grpc", "aiohttp", "kubernetes", "pynvml", "yaml", "pydantic", "prometheus_client")


def test_help_names_every_command(aliquot):
    shown = aliquot("--help").output
    assert [name for name in COMMANDS if f"  {name} " not in shown] == []


SUBCOMMANDS = ("node run", "node status", "sim lose", "mps serve", "mps status")


@pytest.mark.parametrize("command", [*COMMANDS, *SUBCOMMANDS])
def test_every_command_explains_itself(aliquot, command):
    result = aliquot(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_an_unknown_command_is_refused(aliquot):
    result = aliquot("demonstrate")
    assert result.exit_code == 2
    assert "demonstrate" in result.output


@pytest.mark.parametrize("command", [[], ["mps"], ["node"], ["sim"], ["doctor"], ["render"]])
def test_help_loads_no_heavy_library(command):
    code = (
        "import sys; from cli.main import main; main(standalone_mode=False); "
        f"print('loaded', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    arguments = [sys.executable, "-c", code, *command, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--node-name"),
        (["--node-name", "Node_1"], "'Node_1' is not a DNS name"),
        (["--node-name", "a", "--driver-name", "-x"], "'-x' is not a DNS name"),
        (["--node-name", "a", "--health-interval", "0"], "0.0 is not in the range"),
        (["--node-name", "a", "--health-interval", "nan"], "'nan' is not a number in the range"),
        (["--node-name", "a", "--refresh-interval", "inf"], "inf is not in the range"),
        (["--node-name", "a", "--log-level", "loud"], "'loud' is not one of"),
    ],
)
def test_the_plugin_refuses_bad_options_before_it_starts(aliquot, arguments, said):
    result = aliquot("node", "run", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_relative_folder_of_simulated_hardware_is_made_absolute(aliquot, monkeypatch, tmp_path):
    """CDI specs name what is in it, and CDI takes absolute paths only."""
    given = []

    def run(settings):
        given.append(settings)
        return 0

    monkeypatch.setattr("driver.main.run", run)
    monkeypatch.setattr("driver.logs.set_up", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    options = ("--simulate", "l4", "--simulate-root", "sim")
    assert aliquot("node", "run", "--node-name", "a", *options).exit_code == 0
    assert given[0].simulate_root == tmp_path / "sim"


def test_a_terminal_without_the_bars_characters_gets_question_marks():
    code = (
        "import click, cli.main as m; m._COMMANDS['bar'] = ('__main__', 'bar', 'x'); "
        "bar = click.command()(lambda: click.echo(chr(0x2588) * 3)); m.main(['bar'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONIOENCODING": "latin-1", "PYTHONPATH": "."},
    )
    assert done.stdout == "???\n"
