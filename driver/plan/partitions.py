"""The partitions that cards could be cut into, in the order in which they shall be taken."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from api.policy import GpuPolicy, NodePolicy
from driver.model.devices import MigPartition
from driver.model.gpu import Gpu, MigProfile
from driver.model.ids import DeviceName, GpuUuid
from driver.model.mig import MigInstance, Placement
from driver.plan.names import partition_name
from driver.plan.order import Shape, applied
from driver.plan.order_table import order_of
from driver.plan.topology import pci_order

_NO_RESET = (9, 0)  # compute capability of Hopper: from here on MIG mode changes without a reset

Spot: TypeAlias = tuple[int, Placement]  # profile id and placement: what an instance is known by


@dataclass(frozen=True, slots=True)
class Adopted:
    """Instances that somebody else made and that are offered as they are, by card."""

    spots: Mapping[GpuUuid, Collection[Spot]] = field(default_factory=dict)

    def of(self, gpu: GpuUuid) -> Collection[Spot]:
        return self.spots.get(gpu, ())


def spot(instance: MigInstance) -> Spot:
    return instance.profile_id, instance.placement


def rule_of(gpu: Gpu, policy: NodePolicy) -> GpuPolicy:
    return policy.for_gpu(gpu.uuid, gpu.product, gpu.pci)


def may_toggle(gpu: Gpu, rule: GpuPolicy) -> bool:
    """Whether a claim may change the card's MIG mode. Never where that needs a reset (Ampere):
    cards were left waiting for it (dra-driver-nvidia-gpu#883, #1006, #1018)."""
    if gpu.mig_mode is None or gpu.compute_capability < _NO_RESET:
        return False
    if rule.mig_mode_toggle is None:
        return "mig" in rule.modes
    return rule.mig_mode_toggle == "whenIdle"


def whole_toggle(gpu: Gpu, rule: GpuPolicy) -> bool | None:
    """Whether a claim for the card as a whole may turn MIG mode off. None: nobody cuts this card
    up, so nobody needs to look at its mode."""
    toggle = may_toggle(gpu, rule)
    return toggle if gpu.mig_mode is not None and ("mig" in rule.modes or toggle) else None


def is_media_variant(profile: str) -> bool:
    """``+me``, ``-me``, ``+gfx``, …: variants of a plain profile."""
    return "+" in profile or "-" in profile


def profile_ranks(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Names of all profiles: the smallest first, so that a claim that asks for memory gets the
    smallest partition that has it, and variants last, so that nobody gets one by chance."""
    found: dict[str, tuple[bool, int, int, str]] = {}
    for profile in (profile for gpu in gpus for profile in gpu.mig_profiles):
        variant = is_media_variant(profile.name)
        key = (variant, int(profile.memory), profile.slices, profile.name)
        found[profile.name] = min(key, found.get(profile.name, key))
    return tuple(sorted(found, key=lambda name: found[name]))


def partitions(
    gpus: Iterable[Gpu],
    names: Mapping[GpuUuid, DeviceName],
    policy: NodePolicy,
    adopted: Adopted,
) -> tuple[MigPartition, ...]:
    """Every partition of every card, profile by profile; adopted ones stand in their place."""
    cards = sorted(gpus, key=lambda gpu: pci_order(gpu.pci))
    by_kind: dict[tuple[str, tuple[MigProfile, ...]], list[Gpu]] = {}
    for gpu in cards:
        if gpu.mig_profiles:
            by_kind.setdefault((gpu.product, gpu.mig_profiles), []).append(gpu)
    by_profile: dict[str, list[MigPartition]] = {name: [] for name in profile_ranks(cards)}
    for kind in by_kind.values():
        for made in _of_kind(kind, names, policy, adopted):
            by_profile[made.profile.name].append(made)
    return tuple(each for found in by_profile.values() for each in found)


def _of_kind(
    cards: list[Gpu],
    names: Mapping[GpuUuid, DeviceName],
    policy: NodePolicy,
    adopted: Adopted,
) -> Iterable[MigPartition]:
    """Of cards of one product with the same profiles."""
    profiles = {profile.name: profile for profile in cards[0].mig_profiles}
    shapes = tuple(map(shape, profiles.values()))
    by_pci = {gpu.pci: gpu for gpu in cards}
    order = order_of(cards[0].product, shapes, policy.order)
    for walk in applied(order, list(by_pci), shapes).values():
        for place in walk:
            gpu, profile = by_pci[place.card], profiles[place.profile]
            yield MigPartition(
                name=partition_name(names[gpu.uuid], profile.name, place.start),
                gpu=gpu,
                profile=profile,
                start=place.start,
                toggle=may_toggle(gpu, rule_of(gpu, policy)),
                adopted=(profile.id, Placement(place.start, profile.size)) in adopted.of(gpu.uuid),
            )


def shape(profile: MigProfile) -> Shape:
    """What the order needs to know of a profile."""
    return Shape(profile.name, profile.slices, profile.size, profile.starts)
