import random
import subprocess
import sys
from pathlib import Path

import pytest

from driver.state.journal import Journal
from tests.state.builders import uid
from tests.state.churn import CLAIMS

ROOT = Path(__file__).parents[2]


def names_on_disk(folder):
    """Claim number → name of its record; every file must be good."""
    journal = Journal.open(folder)
    assert journal.damaged == ()
    found = {n: journal.get(uid(n)) for n in range(CLAIMS)}
    return {n: record.claim.name for n, record in found.items() if record is not None}


def follow(lines, before):
    """The two states that may be on disk: without and with the change that was cut."""
    sure, maybe = dict(before), dict(before)
    for line in lines:
        match line.split():
            case ["put", n, name]:
                maybe[int(n)] = name
            case ["remove", n]:
                maybe.pop(int(n), None)
            case ["done"]:
                sure = dict(maybe)
            case _:
                pytest.fail(f"the process said {line!r}")
    return sure, maybe


def run_and_kill(folder, seed):
    """What the process said until it was killed; when depends on ``seed`` and on its luck."""
    wanted = random.Random(seed).randrange(2, 120)  # noqa: S311
    command = [sys.executable, "-m", "tests.state.churn", str(folder), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(wanted)]
        process.kill()
        lines += process.stdout.readlines()
    return [line for line in lines if line.endswith("\n")]  # the last may be cut as well


def test_a_killed_process_leaves_no_damaged_record_and_loses_no_finished_change(tmp_path):
    state: dict[int, str] = {}
    changes = 0
    for seed in range(30):
        lines = run_and_kill(tmp_path, seed)
        changes += lines.count("done\n")
        sure, maybe = follow(lines, state)
        state = names_on_disk(tmp_path)
        assert state in (sure, maybe), f"seed {seed}"
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert changes > 30
