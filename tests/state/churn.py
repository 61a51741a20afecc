"""A process that puts and removes records until it is killed, and says what it is doing.

Run as ``python -m tests.state.churn FOLDER SEED``. Each change is announced before it begins
(``put 3 17``: claim 3 gets the name ``17``; ``remove 3``) and followed by ``done``.
"""

import itertools
import random
import sys
from pathlib import Path

from driver.state.journal import Journal
from tests.state.builders import record, uid

CLAIMS = 6


def main() -> None:
    journal = Journal.open(Path(sys.argv[1]))
    dice = random.Random(int(sys.argv[2]))  # noqa: S311 - a seed to repeat a run with
    for turn in itertools.count():
        n = dice.randrange(CLAIMS)
        if dice.random() < 0.6:
            print(f"put {n} {turn}", flush=True)  # noqa: T201 - how the test follows it
            journal.put(record(n, n % 3, steps=True, name=str(turn)))
        else:
            print(f"remove {n}", flush=True)  # noqa: T201
            journal.remove(uid(n))
        print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
