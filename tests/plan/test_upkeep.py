from dataclasses import replace

from driver.model.claims import ClaimState, Record
from driver.model.gpu import ComputeMode
from driver.model.ids import GpuUuid
from driver.model.steps import ServeMps, SetComputeMode, Step
from driver.plan.prepare import plan_prepare
from driver.plan.upkeep import limiting, unneeded, unserved
from tests.plan.builders import BOOT, by_name
from tests.plan.shared import NEW_DRIVER, PODS, of, part, shared_of
from tests.state.builders import record

ONE, TWO = GpuUuid("GPU-1"), GpuUuid("GPU-2")


def having(*steps: Step) -> Record:
    return replace(record(1, 1), steps=steps, state=ClaimState.COMPLETED)


def serve(gpu: GpuUuid = ONE) -> ServeMps:
    return ServeMps(gpu, 1 << 30, 100, 2)


def exclusive(gpu: GpuUuid = ONE) -> SetComputeMode:
    return SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS)


def kinds(*records: Record, served: bool = True) -> list[type]:
    return [type(step) for step in unneeded(ONE, records, served=served)]


def test_what_a_record_wants_is_needed():
    assert kinds(having(exclusive(), serve())) == []
    assert kinds(having(exclusive())) == [ServeMps]
    assert kinds() == [ServeMps, SetComputeMode]


def test_a_card_without_a_daemon_has_none_to_stop():
    assert kinds(served=False) == [SetComputeMode]


def test_a_record_that_is_begun_counts_and_one_of_another_card_does_not():
    begun = replace(having(exclusive(), serve()), state=ClaimState.STARTED)
    assert kinds(begun) == []
    assert kinds(having(exclusive(TWO), serve(TWO))) == [ServeMps, SetComputeMode]


def test_prepared_claims_without_their_daemon_are_found():
    there, gone, other = having(serve()), having(serve(TWO)), having(exclusive(TWO))
    begun = replace(gone, state=ClaimState.STARTED)
    assert unserved([there, gone, other, begun], {ONE}) == (gone,)


def test_prepared_claims_whose_pods_are_limited_are_looked_at():
    pods, _ = shared_of(facts=PODS, driver=NEW_DRIVER)
    begun = plan_prepare(of("a", part(pods)), by_name(pods), (), BOOT)
    done = replace(begun, state=ClaimState.COMPLETED)
    assert limiting([begun, done, having(exclusive())]) == (done,)
