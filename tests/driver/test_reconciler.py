"""The reconciler between a real journal, a real CDI folder and the embedded API server."""

import asyncio
from contextlib import suppress

import pytest

from driver.metrics import Metrics
from driver.model.claims import ClaimState
from driver.model.ids import ClaimUid
from driver.reconciler import Local, Reconciler, Remote
from driver.sim import control
from driver.status_writer import StatusWriter
from driver.telling import Telling
from kubeletplugin.claims import ClaimReader
from kubeletplugin.contract import ClaimRef
from kubeletplugin.events import EventRecorder
from kubeletplugin.paths import plugin_paths
from kubeletplugin.plugin import KubeletPlugin
from tests.driver.cluster import (
    allocate,
    create_claim,
    deallocate,
    delete_claim,
    devices_told,
    events,
    ref_of,
)
from tests.driver.machine import DRIVER, NODE
from tests.polling import eventually

GRACE_S = 60.0  # of the default policy


class Nobody:
    def set_registered(self, registered: bool) -> None:
        """The kubelet plays no part here."""

    def resync(self) -> None:
        """Nor does the publisher."""


class Site:
    """A reconciler with all that it compares; ``restart`` makes the driver's part anew."""

    def __init__(self, machine, api, folder):
        self.machine, self.api = machine, api
        self.client = api.client()
        self.metrics = Metrics()
        self.now = 1000.0
        self.recorder = EventRecorder(self.client, DRIVER, NODE)
        self._paths = plugin_paths(DRIVER, kubelet_root=folder)
        self.status = StatusWriter(self.client, DRIVER, lambda: self.parts.cards.gpus)
        self._writing = asyncio.create_task(self.status.run())
        self.restart()

    def restart(self):
        self.parts = parts = self.machine.start()
        self.serving = KubeletPlugin(
            DRIVER, self._paths, parts.driver, ClaimReader(self.client), Nobody()
        )
        self.reconciler = Reconciler(
            Local(parts.identity, parts.journal, parts.cards, parts.driver, parts.lanes),
            Remote(self.client, self.serving, self.status, Telling(self.recorder, NODE)),
            self.metrics,
            clock=lambda: self.now,
        )

    async def prepare(self, name, *devices, **options):
        claim = await create_claim(self.client, name, *devices, **options)
        assert await self.serving.prepare_one(ref_of(claim)) == ""
        return claim

    async def round(self, after_s=0.0):
        self.now += after_s
        await self.reconciler.round()

    async def settle(self):
        """Wait for Events and claim statuses."""
        await self.recorder._queue.join()
        await eventually(lambda: not self.status.waiting)

    def record(self, claim):
        return self.parts.journal.get(ClaimUid(claim["metadata"]["uid"]))

    def damage(self, claim):
        """Spoil the record on disk and start the driver anew."""
        path = self.machine.claims / f"{claim['metadata']['uid']}.json"
        path.write_bytes(path.read_bytes()[:-20])
        self.restart()
        assert len(self.parts.journal.damaged) == 1

    def recovered(self, outcome):
        return self.metrics.registry.get_sample_value(
            "aliquot_recovered_claims_total", {"outcome": outcome}
        )

    async def close(self):
        self._writing.cancel()
        with suppress(asyncio.CancelledError):
            await self._writing
        await self.recorder.close()


@pytest.fixture
async def site(machine, api, short_root):
    made = Site(machine, api, short_root)
    yield made
    await made.close()


# Damaged records -------------------------------------------------------------------------


async def test_a_damaged_record_is_rebuilt_from_its_claim(machine, api, site):
    claim = await site.prepare("one", machine.device(0))
    await site.prepare("two", machine.device(1))
    before = site.record(claim)
    site.damage(claim)
    assert site.record(claim) is None
    assert await site.reconciler.rebuild()
    assert site.record(claim) == before
    assert site.parts.journal.damaged == ()
    assert not site.parts.cards.blocked
    assert site.recovered("rebuilt") == 1
    await site.settle()
    assert "rebuilt from its claim" in events(api)["ClaimRecordRebuilt"][0]
    site.restart()
    assert site.parts.journal.damaged == ()  # settled for good


async def test_a_damaged_record_whose_claim_is_gone_is_settled(machine, api, site):
    claim = await site.prepare("one", machine.device(0))
    await delete_claim(site.client, "one")
    site.damage(claim)
    assert await site.reconciler.rebuild()
    assert site.parts.journal.damaged == ()
    assert list(machine.cdi.glob("*.json")) == []
    await site.settle()
    (note,) = events(api)["ClaimRecordRebuilt"]
    assert f"claim UID {claim['metadata']['uid']}" in note
    assert "its claim no longer exists" in note


async def test_cards_are_blocked_while_the_api_cannot_say_what_was_prepared(machine, api, site):
    claim = await site.prepare("one", machine.device(0))
    site.damage(claim)
    api.fail(503, verb="list", resource="resourceclaims")
    assert not await site.reconciler.rebuild()
    assert site.parts.cards.blocked
    assert await site.reconciler.rebuild()
    assert not site.parts.cards.blocked


async def test_a_record_that_cannot_be_rebuilt_is_told_once_and_tried_again(machine, api, site):
    claim = await site.prepare("one", machine.device(0))
    site.damage(claim)
    control.lose(machine.root, 0)
    for _ in range(2):
        assert not await site.reconciler.rebuild()
    assert site.parts.cards.blocked
    await site.settle()
    (note,) = events(api)["ClaimRecordDamaged"]
    assert "GPU_IS_LOST" in note
    control.restore(machine.root, 0)
    assert await site.reconciler.rebuild()
    assert site.record(claim) is not None


async def test_a_file_that_names_no_claim_blocks_nothing(machine, site):
    (machine.claims / "no name of a claim.json").write_text("{}")
    site.restart()
    assert len(site.parts.journal.damaged) == 1
    assert await site.reconciler.rebuild()
    assert not site.parts.cards.blocked


async def test_a_record_that_cannot_be_settled_does_not_stop_the_others(machine, site, caplog):
    claim = await site.prepare("one", machine.device(0))
    site.damage(claim)
    (damaged,) = site.parts.journal.damaged
    blocker = damaged.path.with_name(damaged.path.name + ".settled")
    blocker.mkdir()  # renaming a file over a folder is refused
    assert not await site.reconciler.rebuild()
    assert "cannot be marked as dealt with" in caplog.text
    blocker.rmdir()
    assert await site.reconciler.rebuild()


# CDI files -------------------------------------------------------------------------------


async def test_a_missing_cdi_file_is_written_again_and_told(machine, api, site):
    claim = await site.prepare("one", machine.device(0))
    (path,) = machine.cdi.glob("*.json")
    text = path.read_bytes()
    path.unlink()
    await site.round()
    assert path.read_bytes() == text
    assert site.recovered("cdiRestored") == 1
    await site.round()
    assert site.recovered("cdiRestored") == 1
    await site.settle()
    assert len(events(api)["CDIFileRestored"]) == 1
    assert site.record(claim) is not None


async def test_a_cdi_file_that_cannot_be_written_is_left_to_the_next_round(machine, site, caplog):
    await site.prepare("one", machine.device(0))
    await site.prepare("two", machine.device(1))
    for path in machine.cdi.glob("*.json"):
        path.unlink()
    control.lose(machine.root, 0)
    await site.round()
    assert "GPU_IS_LOST" in caplog.text
    assert len(list(machine.cdi.glob("*.json"))) == 1
    control.restore(machine.root, 0)
    await site.round()
    assert len(list(machine.cdi.glob("*.json"))) == 2


async def test_a_half_prepared_claim_gets_no_file(machine, site):
    claim = await create_claim(site.client, "one", machine.device(0), mode="ExclusiveProcess")
    site.parts.journal.put(site.parts.planned(claim))
    assert site.record(claim).state is ClaimState.STARTED
    await site.round()
    assert not machine.cdi.exists()
    assert site.status.waiting == 0


async def test_a_claim_that_is_released_before_its_turn_gets_no_file(machine, site):
    claim = await site.prepare("one", machine.device(0))
    record = site.record(claim)
    await site.serving.unprepare_one(ref_of(claim))
    assert site.reconciler._project(record) is False
    assert list(machine.cdi.glob("*.json")) == []


# Orphans ---------------------------------------------------------------------------------


async def test_an_orphan_needs_two_looks_and_the_grace(machine, api, site):
    claim = await site.prepare("one", machine.device(0))
    await delete_claim(site.client, "one")
    await site.round(10 * GRACE_S)  # the first look, however late
    assert site.record(claim)
    await site.round(GRACE_S - 1)
    assert site.record(claim)
    await site.round(1)
    assert site.record(claim) is None
    assert list(machine.cdi.glob("*.json")) == []
    assert site.recovered("orphanReleased") == 1
    await site.settle()
    assert "no longer exists" in events(api)["OrphanedClaimReleased"][0]


async def test_an_orphan_that_comes_back_in_between_is_kept(machine, site):
    claim = await site.prepare("one", machine.device(0))
    await deallocate(site.client, "one")
    await site.round()
    await allocate(site.client, "one", machine.device(0))
    await site.round(GRACE_S)
    await deallocate(site.client, "one")
    await site.round(GRACE_S)  # counts from here
    assert site.record(claim)


async def test_a_process_on_the_card_keeps_an_orphan(machine, site, caplog):
    caplog.set_level("INFO")
    claim = await site.prepare("one", machine.device(0))
    await delete_claim(site.client, "one")
    control.set_process(machine.root, 0, 4711, 1 << 20)
    await site.round()
    await site.round(GRACE_S)
    assert site.record(claim)
    assert "processes still run" in caplog.text
    assert "4711" in caplog.text
    control.clear_processes(machine.root, 0)
    await site.round()
    assert site.record(claim) is None


async def test_processes_that_cannot_be_read_keep_an_orphan(machine, site, caplog):
    claim = await site.prepare("one", machine.device(0))
    await delete_claim(site.client, "one")
    control.lose(machine.root, 0)
    await site.round()
    await site.round(GRACE_S)
    assert site.record(claim)
    assert "cannot be read" in caplog.text


async def test_another_claim_of_the_name_makes_an_orphan(machine, site):
    claim = await site.prepare("one", machine.device(0))
    await delete_claim(site.client, "one")
    await create_claim(site.client, "one", machine.device(1))
    await site.round()
    await site.round(GRACE_S)
    assert site.record(claim) is None


async def test_a_claim_allocated_elsewhere_is_an_orphan_here(machine, site):
    claim = await site.prepare("one", machine.device(0))
    moved = await deallocate(site.client, "one")
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-2", "device": "gpu-1"}
    moved["status"] = {"allocation": {"devices": {"results": [result]}}}
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one/status"
    await site.client.update(path, moved)
    await site.round()
    await site.round(GRACE_S)
    assert site.record(claim) is None


async def test_an_api_server_that_does_not_answer_releases_nothing(machine, api, site):
    claim = await site.prepare("one", machine.device(0))
    await delete_claim(site.client, "one")
    fault = api.fail(500, verb="get", resource="resourceclaims", count=100)
    for _ in range(3):
        await site.round(GRACE_S)
    assert site.record(claim)
    fault.count = 0
    await site.round()
    await site.round(GRACE_S)
    assert site.record(claim) is None


async def test_a_release_that_is_refused_is_tried_again(machine, site, caplog):
    claim = await site.prepare("one", machine.device(0), mode="ExclusiveProcess")
    await delete_claim(site.client, "one")
    await site.round()
    machine.refuse("nvmlDeviceSetComputeMode", 999)
    await site.round(GRACE_S)
    assert site.record(claim).state is ClaimState.STARTED
    assert "no longer exists, but: nvmlDeviceSetComputeMode" in caplog.text
    await site.round()
    await site.round(GRACE_S)
    assert site.record(claim) is None
    assert machine.compute_mode(0) == 0


# Status ----------------------------------------------------------------------------------


async def test_a_status_that_is_missing_is_written_and_then_left_alone(machine, api, site):
    await site.prepare("one", machine.device(0))
    await site.round()
    await site.settle()
    (entry,) = devices_told(api, "one")
    assert entry["device"] == machine.device(0)
    writes = api.writes["patch", "resourceclaims/status"]
    await site.round()
    await site.settle()
    assert api.writes["patch", "resourceclaims/status"] == writes


async def test_events_name_the_node_where_there_is_no_claim(api, site):
    site.reconciler._tell(ClaimRef("", "", "uid-1"), "Warning", "Odd", "note")
    site.reconciler._tell(ClaimRef("default", "one", "uid-1"), "Warning", "Odd", "note")
    await site.settle()
    kinds = {event["regarding"]["kind"]: event["note"] for event in api.objects("events")}
    assert kinds == {"Node": "claim UID uid-1: note", "ResourceClaim": "note"}
