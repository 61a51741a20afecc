"""Claim statuses are written once, late, and whatever the API server says meanwhile."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from driver import status_writer
from driver.model.ids import ClaimUid
from driver.status_writer import StatusWriter
from tests.driver.cluster import create_claim, devices_told
from tests.driver.machine import DRIVER
from tests.polling import eventually

WRITES = ("patch", "resourceclaims/status")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(status_writer, "_BACKOFF_S", (0.01,))


@pytest.fixture
async def writer(api, parts, quick):
    made = StatusWriter(api.client(), DRIVER, lambda: parts.cards.gpus)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def prepared(api, machine, parts):
    """A claim that is prepared here, and its record."""
    client = api.client()

    async def make(name="one", card=0):
        claim = await create_claim(client, name, machine.device(card))
        await parts.driver.prepare(claim)
        return claim, parts.journal.get(ClaimUid(claim["metadata"]["uid"]))

    return make


async def settled(writer):
    await eventually(lambda: not writer.waiting, "all is written")


async def test_claims_that_are_worked_on_come_first(api, writer, prepared):
    quiet = asyncio.Event()
    asked = []

    async def idle(timeout_s):
        asked.append(timeout_s)
        await quiet.wait()
        return True

    writer.idle = idle
    _, first = await prepared("one")
    _, second = await prepared("two", 1)
    writer.put(first)
    writer.put(second)
    await eventually(lambda: asked, "it waits")
    assert api.writes[WRITES] == 0
    writer.drop(first)
    quiet.set()
    await settled(writer)
    assert api.writes[WRITES] == 1  # what was released meanwhile is not written
    assert asked[0] > 0
    writer.drop(second)


async def test_what_is_released_while_it_waits_is_not_written(api, writer, prepared):
    _, record = await prepared()
    quiet, waiting = asyncio.Event(), asyncio.Event()

    async def idle(timeout_s):
        waiting.set()
        await quiet.wait()
        return True

    writer.idle = idle
    writer.put(record)
    await waiting.wait()
    writer.drop(record)
    quiet.set()
    _, other = await prepared("two", 1)
    writer.put(other)
    await settled(writer)
    assert api.writes[WRITES] == 1


async def test_a_claim_that_hangs_makes_one_write_late_and_no_other(api, writer, prepared):
    asked = []

    async def idle(timeout_s):
        asked.append(timeout_s)
        return False

    writer.idle = idle
    records = [(await prepared(f"c{n}", n))[1] for n in range(2)]
    for record in records:
        writer.put(record)
    await settled(writer)
    assert api.writes[WRITES] == 2
    assert len(asked) == 1


async def test_what_is_put_is_written_once(api, machine, writer, prepared):
    _, record = await prepared()
    writer.put(record)
    writer.put(record)
    await settled(writer)
    (entry,) = devices_told(api, "one")
    assert (entry["driver"], entry["device"]) == (DRIVER, machine.device(0))
    assert entry["data"]["uuid"] == machine.uuids[0]
    assert api.writes[WRITES] == 1


async def test_a_status_is_missing_until_it_says_what_it_should(api, writer, prepared):
    claim, record = await prepared()
    assert writer.missing(claim, record)
    writer.put(record)
    await settled(writer)
    (claim,) = api.objects("resourceclaims")
    assert not writer.missing(claim, record)


async def test_a_released_claim_is_dropped(api, parts, prepared):
    writer = StatusWriter(api.client(), DRIVER, lambda: parts.cards.gpus)
    _, record = await prepared()
    writer.put(record)
    writer.drop(record)
    writer.drop(record)
    assert writer.waiting == 0


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_what_may_pass_is_tried_again(api, writer, prepared, caplog, code):
    caplog.set_level("INFO")
    _, record = await prepared()
    api.fail(code, verb="patch", count=3)
    writer.put(record)
    await settled(writer)
    assert len(devices_told(api, "one")) == 1
    assert caplog.text.count("not written yet") == 3


async def test_an_outage_is_outlasted(api, writer, prepared, caplog):
    caplog.set_level("INFO")
    _, record = await prepared()
    await api.pause()
    writer.put(record)
    await eventually(lambda: "not written yet" in caplog.text)
    await api.resume()
    await settled(writer)
    assert len(devices_told(api, "one")) == 1


async def test_a_refusal_for_good_names_the_permission(api, writer, prepared, caplog):
    _, record = await prepared()
    api.fail(403, verb="patch", reason="Forbidden")
    writer.put(record)
    await settled(writer)
    assert "the ClusterRole needs patch on resourceclaims/status" in caplog.text
    assert devices_told(api, "one") == []


async def test_what_was_refused_for_good_is_not_missing_for_a_while(
    api, writer, prepared, monkeypatch
):
    claim, record = await prepared()
    api.fail(403, verb="patch", reason="Forbidden")
    writer.put(record)
    await settled(writer)
    assert not writer.missing(claim, record)
    assert writer.missing(claim, replace(record, boot_id="another"))
    monkeypatch.setattr(status_writer, "_REFUSED_FOR_S", 0.0)
    assert writer.missing(claim, record)


async def test_parameters_that_cannot_be_written_back_are_explained(api, writer, prepared, caplog):
    _, record = await prepared()
    text = "status.allocation: Forbidden: may not be changed"
    api.fail(422, verb="patch", reason="Invalid", message=text)
    writer.put(record)
    await settled(writer)
    assert "not JSON in its shortest form" in caplog.text


@pytest.mark.parametrize("code", [404, 409])
async def test_a_claim_that_is_gone_is_not_worth_a_word(api, writer, prepared, caplog, code):
    _, record = await prepared()
    api.fail(code, verb="patch", reason="NotFound")
    writer.put(record)
    await settled(writer)
    assert "status of claim" not in caplog.text
    assert api.writes[WRITES] == 1


async def test_a_claim_of_another_uid_is_not_written_to(api, writer, prepared):
    _, record = await prepared()
    other = replace(record, claim=replace(record.claim, uid=ClaimUid("other")))
    writer.put(other)
    await settled(writer)
    assert devices_told(api, "one") == []


@pytest.fixture
def while_writing(writer, monkeypatch):
    """Call something at each write, before the API server is asked."""

    def hook(act):
        apply = writer._client.apply

        async def hooked(path, body, **options):
            act(path)
            return await apply(path, body, **options)

        monkeypatch.setattr(writer._client, "apply", hooked)

    return hook


async def test_a_claim_that_is_always_refused_does_not_hold_up_the_others(
    api, writer, prepared, while_writing
):
    _, first = await prepared("one", 0)
    _, second = await prepared("two", 1)
    while_writing(lambda path: api.fail(500, verb="patch") if "/one/" in path else None)
    writer.put(first)
    writer.put(second)
    await eventually(lambda: devices_told(api, "two"))
    assert writer.waiting >= 1
    assert devices_told(api, "one") == []


async def test_a_claim_released_while_its_write_fails_is_forgotten(
    api, writer, prepared, while_writing
):
    _, record = await prepared()

    def act(path):
        api.fail(500, verb="patch")
        writer.drop(record)

    while_writing(act)
    writer.put(record)
    await eventually(lambda: api.writes[WRITES])
    await settled(writer)
    assert devices_told(api, "one") == []
    assert api.writes[WRITES] == 1


async def test_a_record_put_again_while_it_is_written_is_written_again(
    api, writer, prepared, while_writing
):
    _, record = await prepared()
    later = [replace(record)]
    while_writing(lambda path: writer.put(later.pop()) if later else None)
    writer.put(record)
    await eventually(lambda: api.writes[WRITES] == 2)
    await settled(writer)
    assert len(devices_told(api, "one")) == 1
