"""What lies on the cards besides what records say: adopted partitions, and strange ones."""

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Protocol

from api.policy import NodePolicy
from driver.errors import HardwareError
from driver.model.gpu import Gpu
from driver.model.ids import GpuUuid
from driver.model.mig import MigInstance, Place, Placement
from driver.plan.partitions import Adopted, Spot, rule_of, spot

log = logging.getLogger(__name__)


class Hardware(Protocol):
    def instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]: ...


class Strangers:
    """Instances that are not ours. Adopted are those that were there when a card was first seen
    under ``adoptExisting``: the list is written down then, because after a lost journal our own
    live instances must not turn up as somebody's static ones."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._listed: dict[GpuUuid, frozenset[Spot]] = {}
        self._there: dict[GpuUuid, tuple[MigInstance, ...]] = {}
        self.strange: Mapping[GpuUuid, tuple[MigInstance, ...]] = {}

    @property
    def adopted(self) -> Adopted:
        """Adopted partitions that exist now."""
        return Adopted(
            {
                gpu: frozenset(map(spot, self._there.get(gpu, ()))) & listed
                for gpu, listed in self._listed.items()
            }
        )

    def look(
        self, gpus: Iterable[Gpu], policy: NodePolicy, places: Callable[[], Set[Place]]
    ) -> tuple[tuple[GpuUuid, MigInstance], ...]:
        """Read the instances of every card in MIG mode; returns the strange ones that are new.

        ``places`` tells what records hold now. An instance of ours has a record as long as it
        exists, so one without a record both before and after it was read is not ours. Blocks.
        """
        strange: dict[GpuUuid, tuple[MigInstance, ...]] = {}
        there: dict[GpuUuid, tuple[MigInstance, ...]] = {}
        for gpu in gpus:
            if gpu.mig_mode is None or not gpu.mig_mode.current:
                continue
            try:
                there[gpu.uuid], foreign = self._foreign(gpu.uuid, places)
            except HardwareError as error:
                log.warning("partitions of card %s cannot be read: %s", gpu.uuid, error)
                there[gpu.uuid] = self._there.get(gpu.uuid, ())
                strange[gpu.uuid] = self.strange.get(gpu.uuid, ())
                continue
            if rule_of(gpu, policy).adopt_existing and gpu.uuid not in self._listed:
                self._listed[gpu.uuid] = frozenset(spot(each) for each in foreign if each.compute)
            listed = self._listed.get(gpu.uuid, frozenset())
            strange[gpu.uuid] = tuple(each for each in foreign if spot(each) not in listed)
        before = {(gpu, spot(each)) for gpu, found in self.strange.items() for each in found}
        self.strange, self._there = strange, there
        return tuple(
            (gpu, each)
            for gpu, found in strange.items()
            for each in found
            if (gpu, spot(each)) not in before
        )

    def _foreign(
        self, gpu: GpuUuid, places: Callable[[], Set[Place]]
    ) -> tuple[tuple[MigInstance, ...], tuple[MigInstance, ...]]:
        """All instances of a card, and those that no record has, seen twice."""
        there: tuple[MigInstance, ...] = ()
        suspects: set[Spot] | None = None
        for _ in range(2):
            before = places()
            there = self._hardware.instances(gpu)
            ours = before | places()
            found = {spot(each) for each in there if (gpu, each.placement) not in ours}
            suspects = found if suspects is None else suspects & found
            if not suspects:
                return there, ()
        return there, tuple(each for each in there if spot(each) in (suspects or ()))

    # Over a restart ----------------------------------------------------------------------

    def to_data(self) -> dict[str, list[list[int]]]:
        """The lists of adopted partitions: profile id, start and size of each, by card."""
        return {
            gpu: sorted([profile, place.start, place.size] for profile, place in listed)
            for gpu, listed in self._listed.items()
        }

    def from_data(self, raw: Any) -> None:
        """The inverse of ``to_data``; what is not of that form is left aside."""
        if not isinstance(raw, dict):
            return
        for gpu, rows in raw.items():
            try:
                spots = ((int(p), Placement(int(start), int(size))) for p, start, size in rows)
                self._listed[GpuUuid(gpu)] = frozenset(spots)
            except (TypeError, ValueError) as error:
                log.warning("the adopted partitions of card %s are forgotten: %s", gpu, error)
