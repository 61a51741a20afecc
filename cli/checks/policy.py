"""The node policy file."""

from pathlib import Path

from cli.checks.finding import Finding, fail, ok
from driver.errors import PolicyError
from driver.watching import read_policy

AREA = "Node policy"


def check(path: Path | None, node: str) -> list[Finding]:
    """Every problem is a finding of its own."""
    if path is None:
        return [ok("policy file", "none: every card has the modes gpu, mps and timeslice")]
    try:
        read_policy(path, node)
    except PolicyError as error:
        mend = f"mend {path}; the plugin does not start with it"
        return [fail("policy file", each, "a valid policy", mend) for each in error.problems]
    return [ok("policy file", str(path))]
