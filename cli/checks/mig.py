"""Cards in MIG mode: whose mode that is, and what becomes of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from api.policy import NodePolicy
from cli import records
from cli.checks.finding import Finding, ok, warn
from cli.text import plural
from driver.errors import PolicyError, StateError
from driver.model.gpu import Gpu
from driver.model.ids import GpuUuid
from driver.plan.partitions import may_toggle, rule_of
from driver.settings import Settings
from driver.state.known import VERSION
from driver.state.quarantine import read_envelope
from driver.watching import read_policy


@dataclass(frozen=True, slots=True)
class Known:
    """What the driver has on disk of its cards and partitions."""

    policy: NodePolicy = field(default_factory=NodePolicy)
    claims: Mapping[GpuUuid, Sequence[str]] = field(default_factory=dict)  # that have partitions
    adopted: Mapping[GpuUuid, int] = field(default_factory=dict)  # how many, where there are any
    problem: str = ""  # why it cannot be told; the rest means nothing then


# Pure ------------------------------------------------------------------------------------


def judge(gpus: Iterable[Gpu], known: Known) -> list[Finding]:
    """A finding for each card in MIG mode. Turning the mode off is advised only where the driver
    has nothing to do with it."""
    return [_of_card(gpu, known) for gpu in gpus if gpu.mig_mode and gpu.mig_mode.current]


def _of_card(gpu: Gpu, known: Known) -> Finding:
    check = f"card {gpu.pci}"
    if known.problem:
        return warn(
            check,
            f"in MIG mode, and whose that is cannot be told: {known.problem}",
            "readable records and a valid node policy",
            "mend that, or run as root; until then leave the mode as it is",
        )
    if why := _ours(gpu, known):
        return ok(check, f"in MIG mode: {why}")
    rule = rule_of(gpu, known.policy)
    if may_toggle(gpu, rule):
        return ok(
            check,
            "in MIG mode, which is the plugin's to change: it turns it off for the next claim "
            "that wants the card as a whole",
        )
    if "mig" in rule.modes:
        return ok(check, "in MIG mode: offered in partitions, and not whole until it is off")
    return warn(
        check,
        "in MIG mode without a partition of any claim, and the node policy lets the plugin "
        "neither use that nor end it, so the card is not offered",
        "MIG mode off, or partitions allowed",
        f"when it is idle: nvidia-smi -i {gpu.pci} -mig 0; or add mig to the modes of its rule in "
        "the node policy",
    )


def _ours(gpu: Gpu, known: Known) -> str:
    """Which partitions of the driver's are there; empty for none."""
    if claims := known.claims.get(gpu.uuid):
        return f"the driver has partitions there for {', '.join(claims)}"
    if count := known.adopted.get(gpu.uuid):
        listed = plural(count, "partition")
        return f"{listed} made by hand, listed for being offered (adoptExisting)"
    return ""


# Reading ---------------------------------------------------------------------------------


def read(settings: Settings) -> Known:
    """From the node policy, the journal and cards.json; nothing is changed.

    What the policy says by labels of the node is left out: they are not known here.
    """
    try:
        policy = read_policy(settings.policy_file, settings.node_name)
        held = records.read(settings.journal_dir, settings.cdi_dir, settings.driver_name)
        adopted = _adopted(settings.known_file)
    except PolicyError:
        return Known(problem="the node policy has mistakes")
    except (StateError, OSError) as error:
        return Known(problem=str(error))
    if held.damaged:
        return Known(problem=held.damaged[0].problem)
    claims: dict[GpuUuid, list[str]] = {}
    for record in (entry.record for entry in held.entries):
        for gpu in {each.gpu for each in record.held if each.placement is not None}:
            claims.setdefault(gpu, []).append(f"{record.claim.namespace}/{record.claim.name}")
    return Known(policy, claims, adopted)


def _adopted(path: Path) -> dict[GpuUuid, int]:
    try:
        listed = read_envelope(path, VERSION).get("adopted")
    except FileNotFoundError:
        return {}
    if not isinstance(listed, dict):
        return {}
    return {GpuUuid(gpu): len(rows) for gpu, rows in listed.items() if rows}
