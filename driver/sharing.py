"""What this node has for sharing its cards, and how the daemons behind shares are."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from driver.errors import StateError
from driver.hw.mps import step_of
from driver.model.gpu import Inventory
from driver.model.ids import GpuUuid
from driver.model.shares import MpsFacts, SharingFacts
from driver.model.steps import ServeMps
from driver.model.view import MpsFolders
from driver.plan.facts import sharing_from_dict, sharing_to_dict
from driver.plan.sharing import has_new_driver
from mps.protocol import CardState, SupervisorInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the MPS supervisor."""

    info: SupervisorInfo | None = None  # None: it did not answer
    cards: Mapping[GpuUuid, CardState] = field(default_factory=dict)
    problem: str = ""  # why it did not answer, or cannot start daemons


class Sharing:
    """One value of the world at a time, replaced as a whole; any thread may read it."""

    def __init__(self, folders: dict[GpuUuid, MpsFolders]) -> None:
        """``folders`` are those that ``MpsCards`` keeps; remembered ones are added."""
        self.facts = SharingFacts()
        self.seen: Seen | None = None  # None: not looked yet
        self._folders = folders

    # Learning ----------------------------------------------------------------------------

    def take(self, seen: Seen) -> None:
        """Take in a look. What the supervisor can do is kept while it is away."""
        self.seen = seen
        info = seen.info
        if info is not None and info.protocols:
            self.facts = replace(self.facts, mps=MpsFacts(info.protocols, info.multi_user))

    def set_intervals(self, settable: bool) -> None:
        """Whether time slices can be set on this node."""
        self.facts = replace(self.facts, intervals=settable)

    def look_at_pods(
        self, problem: Callable[[Iterable[GpuUuid]], str | None], found: Inventory
    ) -> None:
        """Whether pods can be limited by cgroup, as ``problem`` tells; what was known stays where
        it does not, as while all cards are in MIG mode, which has no such limits. An older driver
        cannot, whatever the node's cgroups are: they are not searched."""
        if not has_new_driver(found.driver_version):
            return
        able = [gpu.uuid for gpu in found.gpus if not (gpu.mig_mode and gpu.mig_mode.current)]
        told = problem(able)
        if told is not None:
            self.facts = replace(self.facts, no_cgroup=told)

    # Telling -----------------------------------------------------------------------------

    @property
    def away(self) -> str:
        """Why no share can be prepared now; empty while the supervisor answers, or before the
        first look."""
        return "" if self.seen is None else self.seen.problem

    def fault(self, gpu: GpuUuid) -> str:
        """What is wrong with the card's control daemon; empty where it is well, or not known."""
        state = self.seen.cards.get(gpu) if self.seen else None
        if state is None or (state.running and state.failure is None):
            return ""
        return f"its MPS control daemon died: {state.failure or 'it is being started'}"

    def served(self) -> set[ServeMps]:
        """The daemons that are well, by the step that starts them; none while nobody answers."""
        if self.seen is None or self.away:
            return set()
        return {
            step_of(each.spec)
            for each in self.seen.cards.values()
            if each.running and each.failure is None
        }

    def daemons(self, running: bool) -> float:
        """How many control daemons there are that run, or do not; for a gauge."""
        states = self.seen.cards.values() if self.seen else ()
        return sum(state.running is running for state in states)

    def up(self) -> float:
        """1 while the supervisor answers and can start daemons; for a gauge."""
        return float(self.seen is not None and not self.seen.problem)

    # Over a restart ----------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """What must be known while the supervisor is away; folders are also those of live pods.
        Empty where nothing is known."""
        if self.facts == SharingFacts() and not self._folders:
            return {}
        folders = {gpu: asdict(each) for gpu, each in sorted(self._folders.items())}
        return {"facts": sharing_to_dict(self.facts), "folders": folders}

    def from_data(self, raw: Any) -> None:
        """The inverse of ``to_data``; what is not of that form is left aside."""
        if not raw:
            return
        try:
            self.facts = sharing_from_dict(raw["facts"])
            self._folders |= {
                GpuUuid(gpu): MpsFolders(**each) for gpu, each in raw["folders"].items()
            }
        except (StateError, TypeError, KeyError, AttributeError) as error:
            log.warning("what was known of sharing is forgotten: %s", error)
