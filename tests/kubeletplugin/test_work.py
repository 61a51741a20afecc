import asyncio

from kubeletplugin.work import ClaimWork
from tests.polling import eventually


async def test_jobs_of_one_claim_run_one_after_another():
    work: ClaimWork[str] = ClaimWork()
    active, seen = 0, []

    async def job(name):
        nonlocal active
        active += 1
        seen.append((name, active))
        await asyncio.sleep(0)
        active -= 1
        return name

    results = await asyncio.gather(
        work.run("a", "prepare", lambda: job("first")),
        work.run("a", "unprepare", lambda: job("second")),
        work.run("a", "prepare", lambda: job("third")),
    )
    assert list(results) == ["first", "second", "third"]
    assert seen == [("first", 1), ("second", 1), ("third", 1)]


async def test_a_cancelled_caller_does_not_stop_the_job_and_the_next_one_waits_for_it():
    work: ClaimWork[str] = ClaimWork()
    gate, log = asyncio.Event(), []

    async def slow():
        log.append("slow begins")
        await gate.wait()
        log.append("slow ends")
        return "slow"

    async def quick():
        log.append("quick")
        return "quick"

    caller = asyncio.create_task(work.run("a", "prepare", slow))
    await eventually(lambda: log == ["slow begins"])
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()

    after = asyncio.create_task(work.run("a", "unprepare", quick))
    await asyncio.sleep(0)
    assert log == ["slow begins"]
    gate.set()
    assert await after == "quick"
    assert log == ["slow begins", "slow ends", "quick"]


async def test_repeated_calls_share_the_job_that_has_not_begun():
    work: ClaimWork[int] = ClaimWork()
    gate, runs = asyncio.Event(), 0

    async def job():
        nonlocal runs
        runs += 1
        mine = runs
        await gate.wait()
        return mine

    callers = [asyncio.create_task(work.run("a", "prepare", job))]
    await eventually(lambda: runs == 1)
    callers += [asyncio.create_task(work.run("a", "prepare", job)) for _ in range(4)]
    await eventually(lambda: work.busy == 2)
    assert work.busy == 2  # one runs, one waits for all four that came later
    gate.set()
    assert [await caller for caller in callers] == [1, 2, 2, 2, 2]
    assert work.busy == 0


async def test_jobs_of_different_claims_run_side_by_side():
    work: ClaimWork[None] = ClaimWork()
    both = asyncio.Barrier(2)

    async def job():
        async with asyncio.timeout(10):
            await both.wait()

    await asyncio.gather(work.run("a", "prepare", job), work.run("b", "prepare", job))


async def test_drain_waits_for_the_work_and_says_when_it_gave_up():
    work: ClaimWork[None] = ClaimWork()
    gate = asyncio.Event()

    async def job():
        await gate.wait()

    caller = asyncio.create_task(work.run("a", "prepare", job))
    await eventually(lambda: work.busy == 1)
    assert not await work.drain(0)
    gate.set()
    assert await work.drain(10)
    await caller
