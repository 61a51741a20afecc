"""``python -m e2e [pytest arguments]``: build what is missing, boot a cluster, run the tests.

Arguments go to pytest; without a path among them all of ``e2e/`` runs. ``python -m e2e clean
[name]`` removes what a killed run has left (the next run does it too). Needs root on Linux.

Pytest itself stays in the host's network namespace: the client makes its sockets inside the
cluster's, programs are started inside (see ``e2e.cluster.local``).

Environment: ``ALIQUOT_E2E_NAME`` names the cluster (two runs at once need two names),
``ALIQUOT_E2E_KUBERNETES`` chooses the version (1.34, 1.35, 1.37; the newest is the default),
``ALIQUOT_E2E_STATE`` is where its files lie (/var/lib/aliquot-e2e), ``XDG_CACHE_HOME`` holds the
built programs. After a failure the programs' logs are in ``e2e/out``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.cluster import cleanup, lock
from e2e.cluster.console import phase, say
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.cluster.provider import PROVIDERS, chosen_name

HERE = Path(__file__).parent


def pytest_arguments(arguments: Sequence[str], folder: Path = HERE) -> list[str]:
    """What pytest is called with: the folder is added unless a test path is named."""
    named = any(Path(word.partition("::")[0]).exists() for word in arguments)
    return [*arguments] if named else [str(folder), *arguments]


def clean(name: str) -> int:
    """Remove the traces of a cluster that no process holds any more."""
    layout = Layout.of(name)
    with phase(f"cluster {name} removed"), lock.held(layout):
        cleanup.remove(layout)
    return 0


def run(arguments: Sequence[str]) -> int:
    """Set up and run pytest; returns its exit status."""
    provider = PROVIDERS["local"]
    if reason := provider.unavailable():
        say(reason)
        return 1
    with phase("setup"):
        provider.setup()
    with phase("tests"):
        return int(pytest.main(pytest_arguments(arguments)))


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    try:
        if arguments[:1] == ["clean"]:
            return clean(arguments[1] if len(arguments) > 1 else chosen_name())
        return run(arguments)
    except ClusterError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
