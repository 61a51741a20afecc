"""Prepare and unprepare: the order of things, and nothing else."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from driver.apply.executor import Executor, Outcome, Recovery, also, needs_redo
from driver.errors import DeviceConflictError, DeviceHeldError, DriverError, StateError
from driver.lanes import Lanes
from driver.model.claims import AllocatedClaim, ClaimState, Record
from driver.model.devices import Device, MigPartition
from driver.model.gpu import GpuProcess
from driver.model.ids import ClaimUid, DeviceName, GpuUuid
from driver.model.mig import Place, Placement
from driver.model.steps import ServeMps
from driver.model.view import NodeView
from driver.plan.cdi import cdi_device_id, cdi_spec
from driver.plan.cdi_rules import validate_spec
from driver.plan.claims import parse_claim
from driver.plan.layout import is_shared
from driver.plan.limits import check_pods, given, limited, limited_pods
from driver.plan.prepare import Around, Foreign, plan_prepare, same_devices
from driver.plan.standing import changes_nothing, standing
from driver.pods import pods_of
from driver.state.cdi_dir import CdiDir
from driver.state.journal import Journal
from kubeletplugin.contract import ClaimRef, Object, PreparedDevice

log = logging.getLogger(__name__)

_HOLDER_PATIENCE_S = 10.0  # of the kubelet's 45 s; an unprepare takes milliseconds, MIG a second
_LOG_AFTER_S = 0.005
_HOLDER_POLL_S = 0.1


class Node(Protocol):
    """What a prepare needs to know of the node's cards. Methods block."""

    @property
    def devices(self) -> Mapping[DeviceName, Device]: ...
    @property
    def served(self) -> Set[ServeMps]: ...
    def view(self, gpus: Iterable[GpuUuid], places: Iterable[Place] = ()) -> NodeView: ...
    def looked_ahead(self, gpus: Iterable[GpuUuid]) -> bool: ...
    def processes(self, gpu: GpuUuid, at: Placement | None = None) -> tuple[GpuProcess, ...]: ...
    def foreign(self, gpu: GpuUuid, ours: Set[Place]) -> tuple[Foreign, ...]: ...
    def strangers(self, gpu: GpuUuid) -> tuple[GpuProcess, ...]: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the driver is on this node, in this boot."""

    driver: str
    pool: str  # the node's name
    boot_id: str


def _afterwards(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(_LOG_AFTER_S, call)


class GpuDriver:
    """Holds no state of its own: the journal, the CDI folder and the cards do."""

    expected_errors: tuple[type[Exception], ...] = (DriverError,)

    def __init__(
        self,
        identity: Identity,
        node: Node,
        journal: Journal,
        cdi: CdiDir,
        executor: Executor,
        lanes: Lanes,
    ) -> None:
        self._identity = identity
        self._node = node
        self._journal = journal
        self._cdi = cdi
        self._executor = executor
        self._lanes = lanes
        self._sound: Any = None  # the edits common to all claims that were last found valid
        self.holder_patience_s = _HOLDER_PATIENCE_S
        self.on_claim: Callable[[Object], None] = lambda _: None
        self.afterwards = _afterwards
        self.on_prepared: Callable[[Record], None] = lambda _: None
        self.on_released: Callable[[Record], None] = lambda _: None

    async def prepare(self, claim: Object) -> Sequence[PreparedDevice]:
        """The devices of an allocated claim, the same on every repeat.

        Raises:
            DriverError: the claim's text for the pod's events; nothing of it is left prepared.
        """
        wanted = parse_claim(claim, self._identity.driver, self._identity.pool)
        record, fresh = await self._once_free(wanted, pods_of(claim).keys())
        self.on_claim(claim)  # only now: what has no record is forgotten
        if fresh:
            self._say("prepared", record)
            self.on_prepared(record)
        return self._answer(record)

    def _say(self, what: str, record: Record) -> None:
        """Log it once the answer is out: a line takes a twentieth of the call."""
        self.afterwards(
            lambda: log.info(
                "claim %s %s: %s", record.claim, what, _names(record), extra=facts(record)
            )
        )

    async def _once_free(self, wanted: AllocatedClaim, pods: Set[str]) -> tuple[Record, bool]:
        """Prepare, waiting a little for a holder to be unprepared.

        A pod deleted without grace frees its claim before the kubelet has unprepared it, and
        after a refusal the kubelet asks again only a minute later (seen with 1.37).
        """
        until = time.monotonic() + self.holder_patience_s
        while True:
            try:
                prepare = partial(self._prepare, wanted, pods)
                brief = partial(self._is_brief, wanted)
                return await self._lanes.run(self._touched(wanted), prepare, brief=brief)
            except DeviceHeldError:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(_HOLDER_POLL_S)

    def _is_brief(self, wanted: AllocatedClaim) -> bool:
        """Whether preparing it waits neither for a card nor for the disk: what it needs to know
        of its cards was looked at while the claim was read, and nothing changes on them. In the
        lanes of its cards."""
        devices = [self._node.devices.get(each.device) for each in wanted.allocations]
        earlier = self._journal.get(wanted.uid)
        if earlier is not None and (earlier.steps or not same_devices(earlier, wanted)):
            return False
        records = self._journal.records_on(self._touched(wanted))
        done = standing(records, self._identity.boot_id, self._node.served)
        return all(
            each.compute_mode is None and changes_nothing(device, done)
            for device, each in zip(devices, wanted.allocations, strict=True)
        ) and self._node.looked_ahead(device.gpu.uuid for device in devices if device)

    async def unprepare(self, claim: ClaimRef) -> None:
        """Take back what was done for a claim; unknown ones are already unprepared."""
        uid = ClaimUid(claim.uid)
        record = self._journal.get(uid)
        if record is None:
            await self._lanes.run((), lambda: self._forget(uid))
            return

        def release() -> None:  # as it is by then: limits of pods are added to prepared claims
            self._executor.release(self._journal.get(uid) or record)

        # Without steps two files are renamed or deleted, and nothing waits for the disk.
        await self._lanes.run(record.gpus, release, brief=lambda: not record.steps)
        self._say("unprepared", record)
        self.on_released(record)

    async def recall(self, claim: ClaimRef) -> Sequence[PreparedDevice] | None:
        """What is prepared for a claim, from the journal, with its CDI file in place."""
        record = self._journal.get(ClaimUid(claim.uid))
        if record is None or not self._stands(record):
            return None
        await self._lanes.run(record.gpus, lambda: self.project(record))
        return self._answer(record)

    def recover(self) -> tuple[Recovery, ...]:
        """Make node and CDI folder match the journal. Blocks; call it before serving.

        Reports each claim. A claim or card that cannot be repaired never stops the others.
        """
        found = self._executor.recover(self._journal.all(), self._identity.boot_id)
        projected = [self._projected(one) for one in found]
        try:
            self._sweep()
        except StateError as error:
            log.warning("CDI files that belong to no claim are not removed: %s", error)
        return tuple(projected)

    def _sweep(self) -> None:
        kept: set[str] = {record.claim.uid for record in self._journal.all()}
        for stray in self._cdi.strays(kept):
            log.warning("CDI file of claim UID %s belongs to no prepared claim: removed", stray)
            self._cdi.remove(stray)
        self._cdi.clear_litter()

    def project(self, record: Record) -> bool:
        """Write the claim's CDI file if it differs from what it should say. True: it did."""
        spec = cdi_spec(record, self._node.view(record.gpus, record.places))
        self._validate(spec)
        return self._cdi.ensure(record.claim.uid, spec)

    def mend(self, record: Record) -> bool:
        """Do the steps of a prepared claim again where their effect is gone. Blocks; call it in
        the lanes of the claim's cards. True: they were done.

        Raises:
            DriverError: they cannot be done now; the record is kept.
        """
        if self._journal.get(record.claim.uid) != record:
            return False  # released, or made good by a prepare
        if not self._is_undone(record):
            return False
        self._executor.redo(record, self._identity.boot_id)
        return True

    def limit(self, record: Record, pods: Set[str]) -> bool:
        """Limit these pods of a prepared claim too, by UID: the kubelet does not ask again for a
        pod that joins it. Blocks; call it in the lanes of the claim's cards. True: something was
        done.

        Raises:
            DriverError: not now; the next call tries again.
        """
        if self._journal.get(record.claim.uid) != record or not given(record):
            return False
        return self._executor.limit(record, self._limitable(record, pods))

    def _limitable(self, record: Record, pods: Set[str]) -> frozenset[str]:
        """Pods to limit: one that left the claim keeps its limit until its cgroup is gone."""
        return self._executor.there(pods | limited_pods(record))

    def _is_undone(self, record: Record) -> bool:
        """Whether the steps of a completed record must be done again."""
        return needs_redo(record, self._identity.boot_id) or not self._executor.stands(record)

    def _validate(self, spec: Mapping[str, Any]) -> None:
        """``validate_spec``, which takes longer than all else where it checks the driver's files
        again: each part is checked by itself, and the common one rarely changes."""
        common = spec["containerEdits"]
        if common is self._sound:
            validate_spec({**spec, "containerEdits": {}})
            return
        validate_spec(spec)
        self._sound = common

    def _projected(self, recovery: Recovery) -> Recovery:
        record = self._journal.get(recovery.claim.uid)
        if record is None or recovery.outcome is Outcome.UNREPAIRED:
            return recovery
        try:
            written = self.project(record)
        except DriverError as error:
            return Recovery(recovery.claim, Outcome.UNREPAIRED, error)
        if written and recovery.outcome is Outcome.INTACT:
            return Recovery(recovery.claim, Outcome.REDONE)
        return recovery

    # In a lane ---------------------------------------------------------------------------

    def _prepare(self, claim: AllocatedClaim, pods: Set[str]) -> tuple[Record, bool]:
        earlier = self._journal.get(claim.uid)
        if earlier is not None:
            earlier = self._reuse(earlier, claim)
        if earlier is not None:
            if self.limit(earlier, pods):
                earlier = self._journal.get(claim.uid) or earlier
            if self.project(earlier):
                log.warning(
                    "claim %s: its CDI file was missing, or not what it should be: written again",
                    claim,
                    extra=facts(earlier),
                )
            return earlier, False
        planned = self._plan(claim)
        if given(planned):
            there = self._limitable(planned, pods)
            check_pods(planned, pods, there)
            planned = replace(limited(planned, there), state=ClaimState.STARTED)
        return self._carry_out(planned), True

    def _carry_out(self, planned: Record) -> Record:
        """The record first: the runtime reads its CDI folder again as soon as the file is there,
        which takes the processor from whatever is still to be done for the pod."""
        record = self._executor.apply(planned)
        try:
            self.project(record)
        except Exception as error:
            also(error, "the roll-back is not finished", lambda: self._executor.release(record))
            raise
        return record

    def _plan(self, claim: AllocatedClaim) -> Record:
        others = self._journal.records_on(self._touched(claim))
        around = Around(
            foreign=self._foreign(claim, others),
            processes=self._strangers(claim, others),
            served=self._node.served,
        )
        return plan_prepare(claim, self._node.devices, others, self._identity.boot_id, around)

    def _strangers(
        self, claim: AllocatedClaim, others: Iterable[Record]
    ) -> dict[GpuUuid, tuple[GpuProcess, ...]]:
        """Processes on the cards of which this claim would have the first share: they were there
        before, and no limit holds them."""
        devices = [self._node.devices.get(each.device) for each in claim.allocations]
        shared = {each.gpu.uuid for each in devices if each is not None and is_shared(each)}
        held = {gpu for record in others if record.claim.uid != claim.uid for gpu in record.gpus}
        return {gpu: self._node.strangers(gpu) for gpu in sorted(shared - held)}

    def _foreign(self, claim: AllocatedClaim, others: Iterable[Record]) -> list[Foreign]:
        """Instances of other programs on the cards that the claim cuts up, or takes out of use as
        cut up. Where the record of this claim was damaged, what lies in its places is its own."""
        devices = [self._node.devices.get(each.device) for each in claim.allocations]
        ours = {place for record in others for place in record.places}
        if any(item.uid == claim.uid for item in self._journal.damaged):
            ours |= {
                (device.gpu.uuid, device.placement)
                for device in devices
                if isinstance(device, MigPartition) and not device.adopted
            }
        cut = {d.gpu.uuid for d in devices if d is not None and d.toggle is not None}
        return [each for gpu in sorted(cut) for each in self._node.foreign(gpu, ours)]

    def _reuse(self, earlier: Record, claim: AllocatedClaim) -> Record | None:
        """The earlier record made good, or None when the claim must be prepared anew."""
        if earlier.state is ClaimState.STARTED:
            self._executor.release(earlier)
            return None
        if not same_devices(earlier, claim):
            self._release_replaced(earlier)
            return None
        if self._is_undone(earlier):
            return self._executor.redo(earlier, self._identity.boot_id)
        return earlier

    def _release_replaced(self, earlier: Record) -> None:
        """The claim was allocated anew under its UID: what it held before is no longer its own."""
        for held in earlier.held:
            if not held.allocation.admin and (running := self._node.processes(*held.place)):
                raise DeviceConflictError(
                    f"claim {earlier.claim} now has another allocation, but process "
                    f"{running[0].pid} still runs on device {held.allocation.device} of the "
                    "earlier one: it must end first"
                )
        self._executor.release(earlier)
        log.warning(
            "claim %s was allocated anew: %s released",
            earlier.claim,
            _names(earlier),
            extra=facts(earlier),
        )

    def _forget(self, uid: ClaimUid) -> None:
        """Remove what a damaged or half-written record of an unknown claim may have left."""
        self._cdi.remove(uid)
        self._journal.remove(uid)
        self._journal.settle(uid)

    # -------------------------------------------------------------------------------------

    def _stands(self, record: Record) -> bool:
        done = record.state is ClaimState.COMPLETED
        return done and not needs_redo(record, self._identity.boot_id)

    def _touched(self, claim: AllocatedClaim) -> tuple[GpuUuid, ...]:
        """The cards of a claim, before and now; unknown devices are refused by the plan."""
        devices = self._node.devices
        names = (allocation.device for allocation in claim.allocations)
        cards = {devices[name].gpu.uuid for name in names if name in devices}
        earlier = self._journal.get(claim.uid)
        return tuple(sorted(cards | set(earlier.gpus if earlier else ())))

    def _answer(self, record: Record) -> tuple[PreparedDevice, ...]:
        driver, uid = self._identity.driver, record.claim.uid
        return tuple(
            PreparedDevice(
                requests=(allocation.request.split("/", 1)[0],),
                pool=allocation.pool,
                device=allocation.device,
                cdi_device_ids=(cdi_device_id(driver, uid, allocation.position),),
                share_id=allocation.share_id,
            )
            for allocation in record.claim.allocations
        )


def _names(record: Record) -> str:
    return ", ".join(held.allocation.device for held in record.held)


def facts(record: Record) -> dict[str, Any]:
    """Fields of a log line about a claim."""
    return {
        "claim": f"{record.claim.namespace}/{record.claim.name}",
        "claimUID": record.claim.uid,
        "devices": [held.allocation.device for held in record.held],
        "gpus": list(record.gpus),
    }
