"""Prepare, unprepare and recall: answers, files and what an error leaves."""

import asyncio
from dataclasses import replace

import pytest

from driver.errors import (
    ClaimError,
    DeviceConflictError,
    HardwareError,
    StateError,
    UnknownDeviceError,
)
from driver.model.claims import ClaimState
from driver.sim import control
from tests.driver.machine import (
    DRIVER,
    EXCLUSIVE,
    NODE,
    claim,
    ref,
    uid,
)

NVML_UNKNOWN = 999
EXCLUSIVELY = "ExclusiveProcess"


async def test_a_prepared_claim_has_a_record_a_cdi_file_and_its_device_in_the_answer(
    machine, parts
):
    (answer,) = await parts.driver.prepare(claim(1, machine.device(0)))
    assert answer.requests == ("gpu",)
    assert (answer.pool, answer.device) == (NODE, machine.device(0))
    assert answer.cdi_device_ids == (f"{DRIVER}/claim={uid()}-0",)
    assert answer.share_id is None
    record = parts.record()
    assert record.state is ClaimState.COMPLETED
    assert record.gpus == (machine.uuids[0],)
    (device,) = machine.spec()["devices"]
    assert device["name"] == f"{uid()}-0"
    nodes = [node["path"] for node in device["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/nvidia0"]
    assert f"ALIQUOT_GPU_0_UUID={machine.uuids[0]}" in device["containerEdits"]["env"]


async def test_links_of_the_drivers_libraries_are_mounted_under_their_names(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0)))
    mounts = {
        mount["containerPath"].rsplit("/", 1)[1]: mount["hostPath"]
        for mount in machine.spec()["containerEdits"]["mounts"]
    }
    assert mounts["libcuda.so.1"] == mounts["libcuda.so"]
    assert mounts["libcuda.so.1"].endswith("libcuda.so.580.105.08")


async def test_a_claim_on_two_cards_answers_in_the_order_of_its_allocation(machine, parts):
    names = [machine.device(1), machine.device(0)]
    answers = await parts.driver.prepare(claim(1, *names))
    assert [answer.device for answer in answers] == names
    assert [answer.cdi_device_ids[0][-1] for answer in answers] == ["0", "1"]


async def test_the_base_name_of_a_subrequest_is_answered(machine, parts):
    raw = claim(1, machine.device(0))
    raw["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/large"
    (answer,) = await parts.driver.prepare(raw)
    assert answer.requests == ("gpu",)


async def test_a_repeat_answers_the_same_and_writes_nothing(machine, parts):
    prepared: list[str] = []
    parts.driver.on_prepared = lambda record: prepared.append(record.claim.uid)
    raw = claim(1, machine.device(0), mode=EXCLUSIVELY)
    first = await parts.driver.prepare(raw)
    before = machine.files()
    assert await parts.driver.prepare(raw) == first
    assert machine.files() == before
    assert prepared == [uid()]  # only the first is news


async def test_a_cdi_file_that_is_missing_is_written_again(machine, parts, caplog):
    raw = claim(1, machine.device(0))
    await parts.driver.prepare(raw)
    text = machine.cdi_file().read_bytes()
    machine.cdi_file().unlink()
    await parts.driver.prepare(raw)
    assert machine.cdi_file().read_bytes() == text
    assert "not what it should be: written again" in caplog.text


async def test_unprepare_takes_everything_back(machine, parts):
    released: list[str] = []
    parts.driver.on_released = lambda record: released.append(record.claim.uid)
    await parts.driver.prepare(claim(1, machine.device(0), mode=EXCLUSIVELY))
    assert machine.compute_mode(0) == EXCLUSIVE
    await parts.driver.unprepare(ref())
    assert machine.compute_mode(0) == 0
    assert parts.record() is None
    assert not machine.cdi_file().exists()
    assert list(machine.claims.glob("*.json")) == []
    assert released == [uid()]


async def test_an_unknown_claim_is_already_unprepared(machine, parts):
    released: list[str] = []
    parts.driver.on_released = lambda record: released.append(record.claim.uid)
    machine.cdi.mkdir()
    machine.cdi_file().write_text("{}")  # what a lost record left
    await parts.driver.unprepare(ref())
    assert not machine.cdi_file().exists()
    assert released == []


async def test_a_uid_that_cannot_be_a_file_name_is_refused(parts):
    with pytest.raises(ClaimError):
        await parts.driver.unprepare(replace(ref(), uid="../../etc/passwd"))


async def test_two_claims_cannot_hold_one_card(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0)))
    with pytest.raises(DeviceConflictError, match=r"is held by claim default/claim-1"):
        await parts.driver.prepare(claim(2, machine.device(0)))
    assert parts.record(2) is None
    await parts.driver.unprepare(ref(1))
    await parts.driver.prepare(claim(2, machine.device(0)))


async def test_a_claim_waits_for_the_holder_to_be_unprepared(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0)))
    parts.driver.holder_patience_s = 60.0
    waiting = asyncio.create_task(parts.driver.prepare(claim(2, machine.device(0))))
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    await parts.driver.unprepare(ref(1))
    (device,) = await waiting
    assert device.device == machine.device(0)


async def test_a_device_that_the_node_lacks_is_refused_with_what_there_is(machine, parts):
    with pytest.raises(UnknownDeviceError, match=machine.device(1)):
        await parts.driver.prepare(claim(1, "gpu-ffffffff"))
    assert parts.record() is None


async def test_a_lost_card_is_refused_and_leaves_nothing(machine, parts):
    control.lose(machine.root, 0)
    with pytest.raises(HardwareError, match="GPU_IS_LOST"):
        await parts.driver.prepare(claim(1, machine.device(0)))
    assert parts.record() is None
    assert not machine.cdi_file().exists()


async def test_a_step_that_nvml_refuses_is_rolled_back(machine, parts):
    machine.refuse("nvmlDeviceSetComputeMode", NVML_UNKNOWN)
    with pytest.raises(HardwareError, match="nvmlDeviceSetComputeMode"):
        await parts.driver.prepare(claim(1, machine.device(0), mode=EXCLUSIVELY))
    assert parts.record() is None
    assert machine.compute_mode(0) == 0


async def test_a_card_without_a_device_node_is_rolled_back(machine, parts):
    (machine.root / "dev/nvidia0").unlink()
    with pytest.raises(HardwareError, match="dev/nvidia0: does not exist"):
        await parts.driver.prepare(claim(1, machine.device(0), mode=EXCLUSIVELY))
    assert parts.record() is None
    assert machine.compute_mode(0) == 0
    assert list(machine.claims.glob("*.json")) == []


async def test_a_roll_back_that_is_refused_too_is_told_with_the_first_error(machine, parts):
    (machine.root / "dev/nvidia0").unlink()
    machine.refuse("nvmlDeviceSetComputeMode", NVML_UNKNOWN, skip=1)
    with pytest.raises(HardwareError) as raised:
        await parts.driver.prepare(claim(1, machine.device(0), mode=EXCLUSIVELY))
    text = str(raised.value)
    assert "dev/nvidia0: does not exist" in text
    assert "the roll-back is not finished: nvmlDeviceSetComputeMode" in text
    assert parts.record().state is ClaimState.STARTED
    assert machine.compute_mode(0) == EXCLUSIVE


async def test_a_record_that_says_started_is_rolled_back_and_prepared_anew(machine, parts):
    raw = claim(1, machine.device(0), mode=EXCLUSIVELY)
    parts.journal.put(parts.planned(raw))
    assert parts.record().state is ClaimState.STARTED
    await parts.driver.prepare(raw)
    assert parts.record().state is ClaimState.COMPLETED
    assert machine.compute_mode(0) == EXCLUSIVE
    assert machine.cdi_file().exists()


async def test_a_release_that_is_refused_keeps_the_record_for_the_next_one(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0), mode=EXCLUSIVELY))
    machine.refuse("nvmlDeviceSetComputeMode", NVML_UNKNOWN)
    with pytest.raises(HardwareError):
        await parts.driver.unprepare(ref())
    assert parts.record().state is ClaimState.STARTED
    assert await parts.driver.recall(ref()) is None
    await parts.driver.unprepare(ref())
    assert parts.record() is None
    assert machine.compute_mode(0) == 0


# Allocated anew --------------------------------------------------------------------------


async def test_a_claim_allocated_anew_gives_its_earlier_card_back(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0), mode=EXCLUSIVELY))
    (answer,) = await parts.driver.prepare(claim(1, machine.device(1)))
    assert answer.device == machine.device(1)
    assert parts.record().gpus == (machine.uuids[1],)
    assert machine.compute_mode(0) == 0
    assert machine.uuids[0] not in machine.cdi_file().read_text()


async def test_a_process_on_the_earlier_card_keeps_a_claim_from_leaving_it(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0)))
    control.set_process(machine.root, 0, 4711, 1 << 20)
    with pytest.raises(DeviceConflictError) as raised:
        await parts.driver.prepare(claim(1, machine.device(1)))
    assert "process 4711 still runs on device " + machine.device(0) in str(raised.value)
    assert parts.record().gpus == (machine.uuids[0],)
    control.clear_processes(machine.root, 0)
    await parts.driver.prepare(claim(1, machine.device(1)))


async def test_admin_access_is_given_up_although_others_run_on_the_card(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0), admin=True))
    control.set_process(machine.root, 0, 4711, 1 << 20)
    await parts.driver.prepare(claim(1, machine.device(1), admin=True))
    assert parts.record().gpus == (machine.uuids[1],)


# Another boot ----------------------------------------------------------------------------


async def test_steps_of_another_boot_are_done_again_by_a_prepare(machine, parts):
    raw = claim(1, machine.device(0), mode=EXCLUSIVELY)
    first = await parts.driver.prepare(raw)
    control.reboot(machine.root)
    assert machine.compute_mode(0) == 0
    later = machine.start()
    assert await later.driver.recall(ref()) is None  # nobody may use it before
    assert await later.driver.prepare(raw) == first
    assert machine.compute_mode(0) == EXCLUSIVE
    assert later.record().boot_id == later.boot != parts.boot


async def test_a_claim_without_steps_stands_after_a_reboot(machine, parts):
    raw = claim(1, machine.device(0))
    first = await parts.driver.prepare(raw)
    control.reboot(machine.root, permute_minors=True)
    later = machine.start()
    assert await later.driver.recall(ref()) == first
    nodes = machine.spec()["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes[0]["path"] == "/dev/nvidia1"  # the minor moved, the card did not


async def test_a_redo_that_fails_keeps_the_record_and_is_tried_again(machine, parts):
    raw = claim(1, machine.device(0), mode=EXCLUSIVELY)
    await parts.driver.prepare(raw)
    control.reboot(machine.root)
    later = machine.start()
    machine.refuse("nvmlDeviceSetComputeMode", NVML_UNKNOWN)
    with pytest.raises(HardwareError):
        await later.driver.prepare(raw)
    assert later.record() is not None
    await later.driver.prepare(raw)
    assert machine.compute_mode(0) == EXCLUSIVE


# Recall ----------------------------------------------------------------------------------


async def test_recall_answers_what_prepare_answered_with_the_cdi_file_in_place(machine, parts):
    first = await parts.driver.prepare(claim(1, machine.device(0), machine.device(1)))
    machine.cdi_file().unlink()
    assert await parts.driver.recall(ref()) == first
    assert machine.cdi_file().exists()


async def test_recall_knows_nothing_of_claims_that_were_never_prepared(parts):
    assert await parts.driver.recall(ref()) is None


# At start --------------------------------------------------------------------------------


async def test_recover_reports_every_claim_and_mends_what_it_can(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0)))
    raw = claim(2, machine.device(1), mode=EXCLUSIVELY)
    parts.journal.put(parts.planned(raw))
    later = machine.start()
    found = {one.claim.uid: one.outcome.value for one in later.driver.recover()}
    assert found == {uid(1): "intact", uid(2): "rolledBack"}
    assert later.record(2) is None
    assert [one.outcome.value for one in later.driver.recover()] == ["intact"]


async def test_recover_after_a_reboot_redoes_steps_and_rewrites_files(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0), mode=EXCLUSIVELY))
    await parts.driver.prepare(claim(2, machine.device(1)))
    control.reboot(machine.root)
    for path in machine.cdi.glob("*.json"):  # /var/run is memory
        path.unlink()
    later = machine.start()
    found = {one.claim.uid: one.outcome.value for one in later.driver.recover()}
    assert found == {uid(1): "redone", uid(2): "redone"}
    assert machine.compute_mode(0) == EXCLUSIVE
    assert machine.cdi_file(1).exists()
    assert machine.cdi_file(2).exists()


async def test_a_claim_that_cannot_be_repaired_does_not_stop_the_others(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0)))
    await parts.driver.prepare(claim(2, machine.device(1)))
    for n in (1, 2):
        machine.cdi_file(n).unlink()
    control.lose(machine.root, 0)
    later = machine.start()
    found = {one.claim.uid: one for one in later.driver.recover()}
    assert found[uid(1)].outcome.value == "unrepaired"
    assert "GPU_IS_LOST" in str(found[uid(1)].error)
    assert found[uid(2)].outcome.value == "redone"
    assert later.record(1) is not None
    assert machine.cdi_file(2).exists()


async def test_a_redo_that_is_refused_at_start_is_reported_and_not_projected(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0), mode=EXCLUSIVELY))
    control.reboot(machine.root)
    machine.cdi_file().unlink()
    later = machine.start()
    machine.refuse("nvmlDeviceSetComputeMode", NVML_UNKNOWN)
    (found,) = later.driver.recover()
    assert found.outcome.value == "unrepaired"
    assert not machine.cdi_file().exists()


async def test_recover_removes_strays_and_litter_of_ours_and_nobody_elses(machine, parts):
    await parts.driver.prepare(claim(1, machine.device(0)))
    machine.cdi_file(7).write_text("{}")
    other = machine.cdi / "vendor.example.com-gpu.json"
    other.write_text("{}")
    machine.start().driver.recover()
    assert not machine.cdi_file(7).exists()
    assert sorted(machine.cdi.glob("*.json")) == sorted([machine.cdi_file(1), other])


async def test_a_stray_that_cannot_be_removed_does_not_stop_the_start(machine, parts, caplog):
    await parts.driver.prepare(claim(1, machine.device(0)))
    machine.cdi_file(7).mkdir()  # unlink refuses it, as a read-only folder would
    (found,) = machine.start().driver.recover()
    assert found.outcome.value == "intact"
    assert "CDI files that belong to no claim are not removed" in caplog.text


async def test_a_cdi_folder_that_refuses_the_file_rolls_the_claim_back(machine, parts):
    machine.cdi.write_text("not a folder")
    with pytest.raises(StateError, match="--cdi-dir"):
        await parts.driver.prepare(claim(1, machine.device(0)))
    machine.cdi.unlink()
    await parts.driver.prepare(claim(1, machine.device(0)))
    assert machine.cdi_file().exists()


async def test_a_journal_that_refuses_the_record_leaves_no_cdi_file(machine, parts):
    (machine.claims / f"{uid()}.json").mkdir()  # renaming a file over a folder is refused
    with pytest.raises(StateError) as raised:
        await parts.driver.prepare(claim(1, machine.device(0)))
    assert "its record may be left" in str(raised.value)
    assert not machine.cdi_file().exists()
    assert parts.record() is None
