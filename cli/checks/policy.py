"""The node policy file."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from api.policy import NodePolicy
from cli.checks.finding import Finding, fail, ok, warn
from driver.errors import DriverError, PolicyError
from driver.model.gpu import Inventory
from driver.plan.sharing import without_room
from driver.watching import read_policy

AREA = "Node policy"


# Pure ------------------------------------------------------------------------------------


def judge_room(found: Inventory, policy: NodePolicy, path: Path) -> list[Finding]:
    """Rules that leave nothing to share on a card that they let be shared."""
    mend = f"mend {path}, or leave mps and timeslice out of the card's modes"
    return [
        warn("policy file", f"card {gpu}: {why}", "memory for shares", mend)
        for gpu, why in without_room(found, policy)
    ]


# Reading ---------------------------------------------------------------------------------


def check(path: Path | None, node: str, look: Callable[[], Inventory]) -> list[Finding]:
    """Every problem is a finding of its own. ``look`` enumerates the cards.

    What the policy says by labels of the node is left out: they are not known here.
    """
    if path is None:
        return [ok("policy file", "none: every card has the modes gpu, mps and timeslice")]
    try:
        policy = read_policy(path, node)
    except PolicyError as error:
        mend = f"mend {path}; the plugin does not start with it"
        return [fail("policy file", each, "a valid policy", mend) for each in error.problems]
    with contextlib.suppress(DriverError):  # said where cards are looked at
        if found := judge_room(look(), policy, path):
            return found
    return [ok("policy file", str(path))]
