"""``python -m e2e.soak``: outages, churn, cards being cut, idle time and a long sequence.

All on a real node.

Exit status 0 when nothing leaked and nothing got stuck, else 1; the table says what. What is
random follows from ``--seed``. ``--short`` runs all of it in about two minutes. Environment as
for ``python -m e2e``.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from e2e.cluster.console import say
from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import PROVIDERS, chosen_spec
from e2e.conftest import LOGS
from e2e.soak.churn import churn
from e2e.soak.cut import cut
from e2e.soak.quiet import idle, outage
from e2e.soak.report import bugs, kinds
from e2e.soak.scene import Scene, scene
from e2e.soak.sequence import sequence


@dataclass(frozen=True)
class Plan:
    """Seconds, and calls at the socket."""

    idle_s: float
    outage_s: float
    churn_s: float
    cut_s: float
    steps: int

    def phases(self) -> dict[str, Callable[[Scene], None]]:
        return {
            "idle": lambda at: idle(at, self.idle_s),
            "sequence": lambda at: sequence(at, self.steps),
            "outage": lambda at: outage(at, self.outage_s),
            "churn": lambda at: churn(at, self.churn_s),
            "cut": lambda at: cut(at, self.cut_s),
        }


SHORT = Plan(idle_s=10, outage_s=12, churn_s=40, cut_s=20, steps=1500)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="churn")
    parser.add_argument("--outage-minutes", type=float, default=10)
    parser.add_argument("--cut-minutes", type=float, default=10, help="churn of partitions")
    parser.add_argument("--idle-minutes", type=float, default=10)
    parser.add_argument("--steps", type=int, default=10_000, help="calls at the socket")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(SHORT.phases()), help="one phase alone")
    parser.add_argument("--short", action="store_true", help="all of it in about two minutes")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    if options.short:
        return SHORT
    return Plan(
        options.idle_minutes * 60,
        options.outage_minutes * 60,
        options.minutes * 60,
        options.cut_minutes * 60,
        options.steps,
    )


def soak(options: argparse.Namespace) -> int:
    """Run the phases; the exit status."""
    provider = PROVIDERS["local"]
    if reason := provider.unavailable():
        say(reason)
        return 1
    provider.setup()
    with provider.cluster(chosen_spec()) as cluster:
        try:
            with scene(cluster, options.seed) as at:
                for name, run in plan_of(options).phases().items():
                    if options.only in (None, name):
                        started = time.monotonic()
                        run(at)
                        say(f"{name}: {time.monotonic() - started:.0f} s")
            log = at.driver.process.log
            at.report.add("all", "bugs in the plugin's log", bugs(log))
            say(at.report.render(kinds(log)))
        finally:
            cluster.save_logs(LOGS / f"{cluster.spec.name}-soak")
        return int(at.report.failed)


def main(arguments: Sequence[str]) -> int:
    try:
        return soak(parse(arguments))
    except ClusterError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
