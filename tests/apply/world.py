"""A node that outlives the driver's process: real journal and CDI folder, simulated effects.

Every access of the executor to it is one *touch*, which can be made to fail or to be the moment
of the process's death, just before or just after it took effect.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from driver.apply.executor import Executor, Recovery
from driver.errors import HardwareError
from driver.model.claims import ClaimState, Record
from driver.model.ids import ClaimUid, GpuUuid
from driver.model.steps import Step
from driver.state.cdi_dir import CdiDir
from driver.state.journal import Journal
from tests.state.builders import BOOT, planned

T = TypeVar("T")


class Crash(BaseException):
    """The process dies here. Not an Exception, so that no handler can swallow it."""


def crash() -> BaseException:
    return Crash()


def failure() -> BaseException:
    return HardwareError("nvmlDeviceSetComputeMode", "in use")


@dataclass(frozen=True)
class Fault:
    """Raise ``make()`` at touch ``at`` (1-based), once."""

    at: int
    make: Callable[[], BaseException]
    after: bool = False  # the touch takes effect first


@dataclass
class Touches:
    """The touches of one process, in order."""

    fault: Fault | None = None
    log: list[str] = field(default_factory=list)

    @property
    def struck(self) -> bool:
        return self.fault is not None and len(self.log) >= self.fault.at

    def touch(self, what: str, act: Callable[[], T]) -> T:
        self.log.append(what)
        fault = self.fault
        if fault is None or len(self.log) != fault.at:
            return act()
        if fault.after:
            act()
        raise fault.make()


@dataclass
class TouchedNode:
    effects: set[Step]
    touches: Touches

    def do(self, step: Step) -> None:
        self.touches.touch("do", lambda: self.effects.add(step))

    def undo(self, step: Step) -> None:
        self.touches.touch("undo", lambda: self.effects.discard(step))

    def present(self, step: Step) -> bool:
        return self.touches.touch("present", lambda: step in self.effects)

    def has_cgroup(self, pod: str) -> bool:
        raise AssertionError(f"nobody asks for pod {pod}")


@dataclass
class TouchedJournal:
    journal: Journal
    touches: Touches

    def records_on(self, gpus: Iterable[GpuUuid]) -> tuple[Record, ...]:
        return self.journal.records_on(gpus)

    def put(self, record: Record) -> None:
        self.touches.touch("put", lambda: self.journal.put(record))

    def remove(self, uid: ClaimUid) -> None:
        self.touches.touch("remove", lambda: self.journal.remove(uid))


@dataclass
class TouchedCdi:
    cdi: CdiDir
    touches: Touches

    def remove(self, name: str) -> None:
        self.touches.touch("cdi remove", lambda: self.cdi.remove(name))


class Process:
    """One life of the driver: what it knows comes from the disk."""

    def __init__(self, world: "World", fault: Fault | None) -> None:
        self.touches = Touches(fault)
        self.journal = Journal.open(world.claims)
        assert self.journal.damaged == ()
        self.executor = Executor(
            TouchedNode(world.effects, self.touches),
            TouchedJournal(self.journal, self.touches),
            TouchedCdi(world.cdi, self.touches),
        )

    def recover(self, boot: str = BOOT) -> dict[ClaimUid, Recovery]:
        report = self.executor.recover(self.journal.all(), boot)
        return {each.claim.uid: each for each in report}


class World:
    """What is there when no process runs."""

    def __init__(self, folder: Path, *bystanders: Record) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.claims = folder / "claims"
        self.cdi = CdiDir(folder / "cdi", "test_")
        self.effects: set[Step] = set()
        self.bystanders = bystanders
        for record in bystanders:
            self.prepare(record)

    def start(self, fault: Fault | None = None) -> Process:
        return Process(self, fault)

    def prepare(self, record: Record) -> Record:
        """All of a prepare that goes well, the CDI file included."""
        done = self.start().executor.apply(planned(record))
        self.project(done)
        return done

    def project(self, record: Record) -> None:
        self.cdi.ensure(record.claim.uid, {"claim": record.claim.uid})

    def records(self) -> dict[ClaimUid, Record]:
        return {record.claim.uid: record for record in self.start().journal.all()}

    def cdi_files(self) -> set[str]:
        return set(self.cdi.strays(set()))

    def check(self) -> None:
        """Journal, node and CDI folder say the same, and bystanders are as they were."""
        records = self.records()
        assert all(record.state is ClaimState.COMPLETED for record in records.values())
        assert self.effects == {step for record in records.values() for step in record.steps}
        assert self.cdi_files() <= set(records)  # what is missing is written at start
        for bystander in self.bystanders:
            assert records[bystander.claim.uid] == bystander
            assert bystander.claim.uid in self.cdi_files()

    def check_claim(self, record: Record, *, prepared: bool) -> None:
        """``check``, and the claim is there wholly or not at all."""
        self.check()
        found = self.records().get(record.claim.uid)
        assert found == (replace(record, state=ClaimState.COMPLETED) if prepared else None)
