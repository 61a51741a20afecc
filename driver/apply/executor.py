"""Carry out a plan. The only module that changes the node on behalf of a claim.

Ordinary errors are handled here; the death of the process (in tests a ``BaseException``) is not:
what it leaves is mended by ``Executor.recover`` at the next start.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from driver.model.claims import AllocatedClaim, ClaimState, Record
from driver.model.ids import ClaimUid, GpuUuid
from driver.model.steps import LimitPod, Step
from driver.plan.limits import effective, limited, rest
from driver.plan.prepare import steps_to_undo

UNKNOWN_BOOT = "unknown"  # a record's boot id when its steps must be done again


class Node(Protocol):
    """The machine. All methods block; ``do`` and ``undo`` are idempotent.

    Raises:
        HardwareError: the step had no effect, or its effect is unknown.
    """

    def do(self, step: Step) -> None: ...
    def undo(self, step: Step) -> None: ...
    def present(self, step: Step) -> bool: ...
    def has_cgroup(self, pod: str) -> bool: ...


class Journal(Protocol):
    """The durable record of prepared claims. ``put`` and ``remove`` return after fsync.

    Raises:
        StateError: the disk refused; memory still holds the earlier record.
    """

    def records_on(self, gpus: Iterable[GpuUuid]) -> tuple[Record, ...]: ...
    def put(self, record: Record) -> None: ...
    def remove(self, uid: ClaimUid) -> None: ...


class CdiFiles(Protocol):
    """The claims' CDI files, named by the claim's UID.

    Raises:
        StateError: the file may still be there.
    """

    def remove(self, name: str) -> None: ...


class Outcome(Enum):
    """What recovery did about a claim."""

    INTACT = "intact"  # not touched
    REDONE = "redone"  # its steps were gone (a reboot, a driver reload) and were done again
    ROLLED_BACK = "rolledBack"  # begun or half released by a process that died; nothing is left
    UNREPAIRED = "unrepaired"  # see the error; the record is kept


@dataclass(frozen=True, slots=True)
class Recovery:
    """What ``Executor.recover`` found and did for one claim; for Events and the log."""

    claim: AllocatedClaim
    outcome: Outcome
    error: Exception | None = None  # why it is UNREPAIRED

    def __str__(self) -> str:
        reason = f": {self.error}" if self.error else ""
        return f"claim {self.claim} {self.outcome.value}{reason}"


def needs_redo(record: Record, boot_id: str) -> bool:
    """Whether the steps of a completed record may be gone: another boot, or a redo that failed."""
    return bool(record.steps) and record.boot_id != boot_id


@dataclass(frozen=True, slots=True)
class Executor:
    """Acts on ``node``, ``journal`` and ``cdi``; decides nothing.

    Calls about the same card must come one after another (its lane); calls about different
    cards may run at once.
    """

    node: Node
    journal: Journal
    cdi: CdiFiles

    def apply(self, record: Record) -> Record:
        """``begin``, then ``carry_out``: the claim is prepared, or nothing of it is left."""
        return self.carry_out(self.begin(record))

    def begin(self, record: Record) -> Record:
        """Put the intent on disk: STARTED, or COMPLETED at once where there is nothing to do
        (no steps, or a plan that found all of them done for claims beside it).

        Short, so that it can be one act with planning; another claim then sees this one. The
        journal must hold nothing of the claim before.

        Raises:
            StateError: the disk refused; the journal holds nothing of the claim.
        """
        begun = record if record.steps else replace(record, state=ClaimState.COMPLETED)
        try:
            self.journal.put(begun)
        except Exception as error:
            # What was refused at the very end may be on disk all the same.
            also(error, "its record may be left", lambda: self.journal.remove(record.claim.uid))
            raise
        return begun

    def carry_out(self, begun: Record) -> Record:
        """Do the steps of what ``begin`` returned and complete the record.

        Any error rolls back and is raised again, a full disk at the second record included. Where
        the roll-back fails too, STARTED stays on disk for the next prepare or the next start,
        and a note on the error says so.
        """
        if begun.state is ClaimState.COMPLETED:
            return begun
        done = replace(begun, state=ClaimState.COMPLETED)
        try:
            for step in self._effects(begun):
                self.node.do(step)
            self.journal.put(done)
        except Exception as error:
            also(error, "the roll-back is not finished", lambda: self.roll_back(begun))
            raise
        return done

    def roll_back(self, record: Record) -> None:
        """Undo the steps that no other record still needs, last first, then forget ``record``."""
        others = self.journal.records_on(record.gpus)
        for step in steps_to_undo(record, others):
            if left := rest(step, record, others):
                self.node.do(left)
            else:
                self.node.undo(step)
        self.journal.remove(record.claim.uid)

    def release(self, record: Record) -> None:
        """Unprepare: the CDI file first, so that no container finds half a device, then the rest.

        Any error is raised again. When steps may be undone already the record says STARTED from
        then on: the next unprepare, prepare or start finishes the roll-back. No record is written
        where all goes well, so that a full disk does not keep cards from being released.
        """
        self.cdi.remove(record.claim.uid)
        try:
            self.roll_back(record)
        except Exception as error:
            state = ClaimState.STARTED if record.steps else record.state
            left = replace(record, state=state)
            also(error, "its record is not marked", lambda: self.journal.put(left))
            raise

    def redo(self, record: Record, boot_id: str) -> Record:
        """Do the steps of a completed record again, then note that they hold in ``boot_id``.

        On any error the record is kept, and ``needs_redo`` stays true.
        """
        for step in self._effects(record):
            self.node.do(step)
        done = replace(record, boot_id=boot_id)
        self.journal.put(done)
        return done

    def stands(self, record: Record) -> bool:
        """Whether every step of ``record`` still has its effect."""
        return all(map(self.node.present, self._effects(record)))

    def there(self, pods: Iterable[str]) -> frozenset[str]:
        """Those of these pods, by UID, that have a cgroup on this node now."""
        return frozenset(filter(self.node.has_cgroup, pods))

    def limit(self, record: Record, pods: Iterable[str]) -> bool:
        """Limit exactly these pods of a completed claim, by UID: for pods that come and go while
        it is prepared. Those that are left out must be gone, and their limits with them. True:
        something was done.

        The record goes first. On any error it is kept so, and the step is missing from what
        ``stands``: the next call, or the next start, does it.
        """
        wanted = limited(record, pods)
        if wanted != record:
            self.journal.put(wanted)
        limits = (step for step in self._effects(wanted) if isinstance(step, LimitPod))
        missing = [step for step in limits if not self.node.present(step)]
        for step in missing:
            self.node.do(step)
        return wanted != record or bool(missing)

    def _effects(self, record: Record) -> tuple[Step, ...]:
        """What doing its steps comes to, now."""
        others = self.journal.records_on(record.gpus)
        return tuple(effective(step, record, others) for step in record.steps)

    def recover(self, records: Iterable[Record], boot_id: str) -> tuple[Recovery, ...]:
        """Make the node match the journal; call it before serving the kubelet.

        STARTED is rolled back. COMPLETED in another boot is done again; so is COMPLETED whose
        steps are gone, as a release that died half-way leaves it (the kubelet will ask again).
        A claim whose steps are present is not touched. One broken card never stops the others.
        CDI files of completed claims are the caller's: they are projections of the journal.
        """
        return tuple(self._recovery(record, boot_id) for record in records)

    def _recovery(self, record: Record, boot_id: str) -> Recovery:
        try:
            if record.state is ClaimState.STARTED:
                self.release(record)
                return Recovery(record.claim, Outcome.ROLLED_BACK)
            return Recovery(record.claim, self._repair(record, boot_id))
        except Exception as error:  # noqa: BLE001 - reported; one claim must not stop the start
            return Recovery(record.claim, Outcome.UNREPAIRED, error)

    def _repair(self, record: Record, boot_id: str) -> Outcome:
        try:
            if not needs_redo(record, boot_id) and self.stands(record):
                return Outcome.INTACT
            self.redo(record, boot_id)
        except Exception as error:
            if not needs_redo(record, boot_id):
                lost = replace(record, boot_id=UNKNOWN_BOOT)
                also(error, "its record is not marked", lambda: self.journal.put(lost))
            raise
        return Outcome.REDONE


def also(error: Exception, meaning: str, act: Callable[[], None]) -> None:
    """Run ``act`` because of ``error``; should it fail too, ``error`` gets a note of both."""
    try:
        act()
    except Exception as second:  # noqa: BLE001 - the first error is raised, this one is its note
        error.add_note(f"{meaning}: {second}")
