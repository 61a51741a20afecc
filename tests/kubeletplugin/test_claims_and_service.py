import asyncio

import pytest

from kubeletplugin.claims import (
    ClaimReader,
    ClaimsUnavailableError,
    check_claim,
    claim_path,
)
from kubeletplugin.contract import ClaimRef, ClaimRefusedError
from kubeletplugin.kube import ApiError, Unreachable
from kubeletplugin.service import DraService, Outcome
from kubeletplugin.work import ClaimWork
from tests.kubeletplugin.stub import Done, ExpectedError, StubClaims, StubDriver, device, ref
from tests.polling import eventually


class Scripted:
    """A client whose GETs answer from a list: exceptions are raised, the last one repeats."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.paths = []
        self.limits = []

    async def get(self, path, *, timeout):  # noqa: ASYNC109
        self.paths.append(path)
        self.limits.append(timeout)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr("kubeletplugin.claims._RETRY_S", (0.0,))


def api_error(code):
    return ApiError(code, "Reason", "the message")


async def test_a_claim_is_read_by_name():
    client = Scripted({"metadata": {}})
    assert await ClaimReader(client).get(ref()) == {"metadata": {}}
    assert client.paths == [claim_path("ns", "claim-0")]


@pytest.mark.parametrize(
    "trouble",
    [Unreachable("https://api", "refused"), api_error(500), api_error(503), api_error(429)],
    ids=str,
)
async def test_reading_goes_on_while_the_api_server_is_away(no_pauses, trouble):
    client = Scripted(trouble, trouble, {"metadata": {"uid": "x"}})
    assert await ClaimReader(client).get(ref()) == {"metadata": {"uid": "x"}}


async def test_a_try_that_hangs_leaves_time_for_more(no_pauses):
    """A connection that died unnoticed: each try may take half of the time that is left."""
    client = Scripted(Unreachable("https://api", "no answer in time"), {"metadata": {}})
    assert await ClaimReader(client).get(ref(), patience_s=8) == {"metadata": {}}
    assert client.limits == [pytest.approx(4, abs=0.5)] * 2  # nothing passed between the two
    await ClaimReader(client).get(ref(), patience_s=0.1)
    assert client.limits[-1] == 0.5


async def test_reading_ends_with_the_cause_when_patience_is_over(no_pauses):
    client = Scripted(Unreachable("https://api", "connection refused"))
    with pytest.raises(ClaimsUnavailableError, match=r"ns/claim-0 could not be read: .*refused"):
        await ClaimReader(client).get(ref(), patience_s=-1)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (404, r"ns/claim-0 \(UID uid-0\) does not exist any more"),
        (403, r"ns/claim-0: .*ClusterRole needs the verb get on resourceclaims"),
        (400, r"ns/claim-0: .*the message"),
    ],
)
async def test_what_trying_again_cannot_mend_is_refused_at_once(code, text):
    client = Scripted(api_error(code))
    with pytest.raises(ClaimRefusedError, match=text):
        await ClaimReader(client).get(ref())
    assert len(client.paths) == 1


def test_a_claim_made_anew_under_the_same_name_is_refused_with_both_uids():
    claim = {"metadata": {"uid": "new"}, "status": {"allocation": {"devices": {}}}}
    with pytest.raises(ClaimRefusedError, match=r"has UID new, the kubelet asked for uid-0"):
        check_claim(claim, ref())


@pytest.mark.parametrize("status", [{}, {"status": None}, {"status": {"allocation": None}}])
def test_a_claim_without_allocation_is_refused(status):
    with pytest.raises(ClaimRefusedError, match="not allocated"):
        check_claim({"metadata": {"uid": "uid-0"}} | status, ref())


def service(driver=None, claims=None, observer=None):
    return DraService(driver or StubDriver(), claims or StubClaims(), ClaimWork(), observer)


async def test_each_claim_gets_its_own_answer(caplog):
    driver = StubDriver(errors={"uid-1": ExpectedError("card is busy"), "uid-2": KeyError("bug")})
    done = Done()
    outcomes = await service(driver, observer=done).prepare([ref(0), ref(1), ref(2)])
    assert outcomes == {
        "uid-0": Outcome((device(0),)),
        "uid-1": Outcome(error="card is busy"),
        "uid-2": Outcome(
            error="internal error in the driver; its log has the details for this claim's UID"
        ),
    }
    assert sorted(done.calls) == [
        ("prepare", uid, outcomes[uid].error) for uid in sorted(outcomes)
    ]
    assert "ns/claim-2:uid-2: prepare hit a bug" in caplog.text


async def test_an_error_without_text_is_answered_with_its_class():
    outcomes = await service(StubDriver(errors={"uid-0": ExpectedError()})).prepare([ref()])
    assert outcomes["uid-0"].error == "ExpectedError"


async def test_the_same_claim_twice_in_one_call_is_prepared_once():
    driver = StubDriver()
    outcomes = await service(driver).prepare([ref(), ref()])
    assert (list(outcomes), driver.started) == (["uid-0"], 1)


async def test_an_empty_call_gets_an_empty_answer():
    assert await service().prepare([]) == {}


async def test_a_claim_of_another_uid_never_reaches_the_driver():
    driver = StubDriver()
    outcomes = await service(driver).prepare([ClaimRef("ns", "claim-0", "uid-9")])
    assert outcomes["uid-9"].devices  # the stub source invents what it is asked for
    claims = StubClaims({"claim-0": {"metadata": {"uid": "other"}}})
    driver = StubDriver()
    outcomes = await service(driver, claims).prepare([ref()])
    assert "has UID other" in outcomes["uid-0"].error
    assert driver.started == 0


async def test_a_known_claim_is_answered_from_the_records_while_the_api_server_is_away():
    driver, claims = StubDriver(), StubClaims()
    served = service(driver, claims)
    first = await served.prepare([ref()])
    claims.away = True
    assert await served.prepare([ref()]) == first
    assert driver.started == 1


async def test_an_unknown_claim_is_refused_with_the_cause_while_the_api_server_is_away():
    outcomes = await service(claims=StubClaims(away=True)).prepare([ref()])
    assert outcomes["uid-0"].error == "ns/claim-0 could not be read: away"


async def test_unprepare_needs_no_api_server_and_answers_for_unknown_claims():
    driver, claims = StubDriver(), StubClaims()
    served = service(driver, claims)
    await served.prepare([ref(0)])
    claims.away, claims.reads = True, 0
    assert await served.unprepare([ref(0), ref(1)]) == {"uid-0": Outcome(), "uid-1": Outcome()}
    assert (driver.prepared, claims.reads) == ({}, 0)


async def test_the_work_goes_on_when_the_kubelet_gives_up_and_is_reported():
    driver, done = StubDriver(gate=asyncio.Event()), Done()
    served = service(driver, observer=done)
    call = asyncio.create_task(served.prepare([ref()]))
    await eventually(lambda: driver.active == 1)
    call.cancel()
    await asyncio.wait([call])
    assert done.calls == []
    driver.gate.set()
    await eventually(lambda: done.calls)
    assert done.calls == [("prepare", "uid-0", "")]
    assert "uid-0" in driver.prepared


@pytest.mark.parametrize("method", ["prepare", "unprepare"])
async def test_what_is_not_done_in_time_is_answered_with_what_it_waits_for(caplog, method):
    driver, done = StubDriver(gate=asyncio.Event()), Done()
    served = service(driver, observer=done)
    served.opened.set()
    if method == "unprepare":
        preparing = asyncio.create_task(served.prepare([ref()]))
        await eventually(lambda: driver.active == 1)
    outcomes = await served.answer(method, [ref()], 0.01)

    assert outcomes["uid-0"].devices == ()
    assert "the driver is not done yet; its work goes on" in outcomes["uid-0"].error
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"claim ns/claim-0:uid-0: {method} takes too long; it is at ClaimWork." in told
    assert ("StubDriver.prepare (stub.py:" in told) == (method == "prepare")
    assert done.calls == []

    driver.gate.set()
    if method == "prepare":
        assert await served.answer("prepare", [ref()], None) == {"uid-0": Outcome((device(0),))}
        assert driver.started == 2, "the first one had begun and may be about another allocation"
    else:
        await preparing
        await eventually(lambda: len(done.calls) == 2)
        assert driver.prepared == {}


async def test_an_api_server_that_is_silent_is_what_an_answer_names(caplog):
    class Silent(StubClaims):
        async def get(self, ref, patience_s=0):
            await asyncio.Event().wait()

    served = service(claims=Silent())
    served.opened.set()
    outcomes = await served.answer("prepare", [ref()], 0.01)
    assert "the API server has not answered with the claim yet" in outcomes["uid-0"].error
    assert "Silent.get" in caplog.text


async def test_calls_wait_for_the_instance_before_and_are_told_so():
    served = service()
    (outcome,) = (await served.answer("prepare", [ref()], 0.01)).values()
    assert "earlier instance has not given way yet" in outcome.error
    asked = asyncio.create_task(served.answer("prepare", [ref()], None))
    await asyncio.sleep(0)
    served.opened.set()
    assert (await asked)["uid-0"].devices == (device(0),)


async def test_claims_of_one_call_do_not_wait_for_each_other():
    driver = StubDriver(gate=asyncio.Event())
    call = asyncio.create_task(service(driver).prepare([ref(n) for n in range(8)]))
    await eventually(lambda: driver.active == 8)
    driver.gate.set()
    assert len(await call) == 8
