"""The node policy: what an administrator allows on the cards of a node.

Example::

    taintEffect: NoSchedule          # NoSchedule, NoExecute or None
    ignoredXids: [94]                # in addition to DEFAULT_IGNORED_XIDS
    orphanGraceSeconds: 120
    gpus:                            # the first rule that selects a card decides
    - select: {product: "NVIDIA H100*"}
      modes: [gpu, mps, timeslice, mig]   # side by side; the first claim decides
      migModeToggle: whenIdle        # or never: MIG mode stays as it is (always so on Ampere)
      adoptExisting: true            # also offer partitions made by hand; never destroy them
    - select: {all: true}
      modes: []                      # not offered
    order:                           # of partitions: api.policy_order, `aliquot plan order`
    - product: "NVIDIA H100*"
      profiles: {3g.40gb: [{down: [4]}, {down: [0]}]}
    nodes:                           # entries that match come before what stands above
    - nodeName: worker-7
      nodeLabels: {pool: training}
      taintEffect: NoExecute
      gpus: [{select: {pciAddress: "0000:3b:00.0"}, modes: []}]

How cards are shared stands in ``api.policy_sharing``. A card that no rule selects is offered
whole and in shares (``DEFAULT_MODES``). Every field may be left out; an empty file is the default
policy.

The order of ``modes`` counts on clusters where shared devices cannot stand beside others (below
Kubernetes 1.36.3): there the first mode decides what the card is, see docs/sharing.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from api.policy_order import OrderRule
from api.policy_sharing import Sharing

MigModeToggle: TypeAlias = Literal["whenIdle", "never"]
TaintEffect: TypeAlias = Literal["NoSchedule", "NoExecute", "None"]

# Errors of applications, not of the card (the list NVIDIA's DRA driver does not taint either).
DEFAULT_IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 109})
MODES = ("gpu", "mps", "timeslice", "mig")
SHARED_MODES = ("mps", "timeslice")
# Not "mig": its mode outlives a claim, and claims for whole cards would have to check it.
DEFAULT_MODES = ("gpu", "mps", "timeslice")


class PolicyProblems(ValueError):  # noqa: N818 - what it is: a list of problems
    """Carries every problem found, each as ``<YAML path>: <what is wrong>``."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.source = source
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class GpuSelector:
    """Which cards a rule is about: all that match each field given; none given: every card."""

    product: str | None = None  # shell pattern, letter case counts
    uuid: str | None = None  # "GPU-…"
    pci_address: str | None = None  # "0000:3b:00.0"

    def matches(self, uuid: str, product: str, pci: str) -> bool:
        return (
            (self.product is None or fnmatchcase(product, self.product))
            and (self.uuid is None or uuid.lower() == self.uuid.lower())
            and (self.pci_address is None or pci == self.pci_address)
        )

    def covers(self, other: "GpuSelector") -> bool:
        """Whether it surely matches every card that ``other`` matches. Of two different patterns
        that is not known."""
        mine, its = self.product, other.product
        plain = its is not None and not set(its) & set("*?[")
        return (
            (mine in {None, "*", its} or (plain and fnmatchcase(str(its), str(mine))))
            and (self.uuid is None or self.uuid.lower() == (other.uuid or "").lower())
            and (self.pci_address is None or self.pci_address == other.pci_address)
        )


@dataclass(frozen=True, slots=True)
class GpuPolicy:
    """What may be done with one card."""

    modes: tuple[str, ...] = DEFAULT_MODES  # of MODES; empty: the card is not offered
    mig_mode_toggle: MigModeToggle | None = None  # None: whenIdle where no reset is needed
    adopt_existing: bool = False  # offer the partitions that somebody else made
    sharing: Sharing = field(default_factory=Sharing)


@dataclass(frozen=True, slots=True)
class GpuRule:
    select: GpuSelector
    policy: GpuPolicy
    path: str = field(default="", compare=False)  # where it stands in the file: "gpus[0]"


@dataclass(frozen=True, slots=True)
class NodeOverride:
    """What differs on the nodes it matches; None and empty fields change nothing."""

    node_name: str | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)  # all must be there
    gpus: tuple[GpuRule, ...] = ()
    taint_effect: TaintEffect | None = None
    ignored_xids: frozenset[int] = frozenset()
    orphan_grace_seconds: int | None = None
    order: tuple[OrderRule, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if self.node_name is not None and self.node_name != name:
            return False
        return all(labels.get(key) == value for key, value in self.node_labels.items())


@dataclass(frozen=True, slots=True)
class NodePolicy:
    gpus: tuple[GpuRule, ...] = ()
    taint_effect: TaintEffect = "NoSchedule"
    ignored_xids: frozenset[int] = DEFAULT_IGNORED_XIDS
    orphan_grace_seconds: int = 60  # between the two looks that must both find a claim orphaned
    order: tuple[OrderRule, ...] = ()  # the first that matches a card's product counts
    nodes: tuple[NodeOverride, ...] = ()

    def for_node(self, name: str, labels: Mapping[str, str]) -> "NodePolicy":
        """This policy with the entries of ``nodes`` that match folded in; earlier ones win."""
        policy = replace(self, nodes=())
        for entry in reversed(self.nodes):
            if entry.matches(name, labels):
                policy = _overridden(policy, entry)
        return policy

    @property
    def wanted_features(self) -> frozenset[str]:
        """Optional fields of ResourceSlices that the rules need: "counters", "sharing". The
        default's do not count: it offers what the cluster can do."""
        modes = {mode for rule in self.gpus for mode in rule.policy.modes}
        found = {"counters"} if "mig" in modes else set()
        return frozenset(found | ({"sharing"} if modes & set(SHARED_MODES) else set()))

    def for_gpu(self, uuid: str, product: str, pci: str) -> GpuPolicy:
        """What the first rule that selects the card says; without one, the default."""
        return self.rule_for(uuid, product, pci).policy

    def rule_for(self, uuid: str, product: str, pci: str) -> GpuRule:
        """The first rule that selects the card; without one, the default with an empty path."""
        for rule in self.gpus:
            if rule.select.matches(uuid, product, pci):
                return rule
        return GpuRule(GpuSelector(), GpuPolicy())


def _overridden(policy: NodePolicy, entry: NodeOverride) -> NodePolicy:
    grace = entry.orphan_grace_seconds
    return NodePolicy(
        gpus=entry.gpus + policy.gpus,
        taint_effect=entry.taint_effect or policy.taint_effect,
        ignored_xids=policy.ignored_xids | entry.ignored_xids,
        orphan_grace_seconds=policy.orphan_grace_seconds if grace is None else grace,
        order=entry.order + policy.order,
    )


def parse_policy(text: str, source: str) -> NodePolicy:
    """Read a policy file; ``source`` names it in the error.

    Raises:
        PolicyProblems: with every problem, so that the file can be mended in one go.
    """
    from api.policy_file import read_policy  # noqa: PLC0415 - the YAML library loads only here

    policy, problems = read_policy(text)
    if problems:
        raise PolicyProblems(source, problems)
    return policy
