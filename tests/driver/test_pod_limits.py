"""Shares whose memory is limited by the cgroup of their pods, on simulated cards of R615. The
driver's side is documented, not run: see ``driver.sim.nvml.limits``."""

import pytest

from driver.errors import ClaimError, HardwareError
from driver.model.claims import ClaimState
from driver.model.steps import LimitPod
from driver.plan.layout import EVERYTHING
from driver.pods import ClaimPods
from driver.sim import cgroups, control
from driver.upkeep import Upkeep
from tests.driver.machine import EXCLUSIVE, SHARED, pod_uid, ref, share
from tests.driver.test_shares import mps
from tests.driver.test_upkeep import Told

GIB = 1 << 30
SET = "nvmlDeviceSetMemoryLimits_v1"
CGROUP = {"kind": "MpsConfig", "requireEnforcement": "cgroup"}
UNKNOWN = 999


def name(n):
    return f"kubepods-burstable-pod{pod_uid(n).replace('-', '_')}.slice"


def begin(machine):
    made = machine.start(SHARED)
    made.look_at_supervisor()
    return made


@pytest.fixture
def parts(machine, supervisor):
    """Driver R615 on a node with cgroup v2, where the kubelet has started pods 1 and 2."""
    control.set_driver_version(machine.root, "615.71.09")
    for n in (1, 2):
        machine.start_pod(n)
    return begin(machine)


def for_pods(claim, *pods):
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": f"pod-{n}", "uid": pod_uid(n)} for n in pods
    ]
    return claim


def memory_limit(parts, device):
    pool = parts.cards.pool(set(), EVERYTHING)
    (found,) = (each for part in pool.slices for each in part.devices if each["name"] == device)
    return found["attributes"]["memoryLimit"]["string"]


# The level ---------------------------------------------------------------------------------


async def test_the_level_is_published_and_may_be_demanded(machine, parts):
    assert memory_limit(parts, mps(machine)) == "cgroup"
    await parts.driver.prepare(share(1, mps(machine), config=CGROUP))
    (held,) = parts.record().held
    assert (held.share.limits.memory, held.share.limits.compute) == ("cgroup", "mpsNamespace")
    assert machine.pod_limits() == {name(1): 14 * GIB}
    assert machine.pod_limits(1) == {}


@pytest.mark.parametrize(
    ("version", "v2", "said"),
    [
        ("580.105.08", True, r"the NVIDIA driver is 580\.105\.08, R615 has it first"),
        ("615.71.09", False, "is not a cgroup v2 hierarchy"),
    ],
)
async def test_a_demand_is_refused_with_what_is_missing(machine, supervisor, version, v2, said):
    control.set_driver_version(machine.root, version)
    if v2:
        machine.start_pod(1)
    parts = begin(machine)
    assert memory_limit(parts, mps(machine)) != "cgroup"
    with pytest.raises(ClaimError, match=rf"requireEnforcement.*\(here: .*{said}"):
        await parts.driver.prepare(share(1, mps(machine), config=CGROUP))
    await parts.driver.prepare(share(1, mps(machine)))
    assert machine.pod_limits() == {}


async def test_a_library_without_the_calls_is_named(machine, parts):
    control.inject(machine.root, "nvmlDeviceGetMemoryLimits_v1", 13, count=None)
    parts = begin(machine)
    with pytest.raises(ClaimError, match=r"\(here: nvmlDeviceGetM\S+ of GPU-\S+: FUNCTION_NOT_F"):
        await parts.driver.prepare(share(1, mps(machine), config=CGROUP))


async def test_the_level_is_kept_while_no_card_can_tell(machine, parts):
    control.set_mig_mode(machine.root, 0, on=True)
    control.lose(machine.root, 1)
    parts.refresh()
    assert parts.cards.sharing.no_cgroup == ""
    parts.cards.save()
    again = machine.start(SHARED, refresh=False)
    assert again.cards.sharing.no_cgroup == ""


# Prepare and unprepare ---------------------------------------------------------------------


async def test_a_pod_with_two_claims_has_their_sum_until_one_ends(machine, parts):
    for n in (1, 2):
        await parts.driver.prepare(for_pods(share(n, mps(machine), memory=f"{n}Gi"), 1))
    assert machine.pod_limits() == {name(1): 3 * GIB}
    await parts.driver.unprepare(ref(1))
    assert machine.pod_limits() == {name(1): 2 * GIB}
    await parts.driver.unprepare(ref(2))
    assert machine.pod_limits() == {}


async def test_two_shares_of_one_claim_are_one_limit(machine, parts):
    await parts.driver.prepare(share(1, mps(machine), mps(machine), memory="5Gi"))
    assert machine.pod_limits() == {name(1): 10 * GIB}


async def test_a_claim_of_several_pods_limits_each_that_is_there(machine, parts):
    await parts.driver.prepare(for_pods(share(1, mps(machine)), 1, 2, 3))
    assert machine.pod_limits() == {name(1): 14 * GIB, name(2): 14 * GIB}


async def test_a_pod_that_ended_first_is_no_failure(machine, parts):
    await parts.driver.prepare(share(1, mps(machine)))
    cgroups.remove_pod(machine.start_pod(1))
    await parts.driver.unprepare(ref(1))
    assert parts.record() is None
    assert machine.compute_mode(0) == 0


async def test_a_pod_without_a_cgroup_is_refused_and_nothing_is_left(machine, parts, supervisor):
    with pytest.raises(ClaimError, match=f"reserved for pods {pod_uid(3)}, and none has a cgroup"):
        await parts.driver.prepare(share(3, mps(machine)))
    assert parts.record(3) is None
    assert (supervisor.states, machine.compute_mode(0)) == ({}, 0)


async def test_a_limit_that_fails_fails_the_claim_and_leaves_nothing(machine, parts, supervisor):
    machine.refuse(SET, UNKNOWN)
    with pytest.raises(HardwareError, match=SET) as caught:
        await parts.driver.prepare(share(1, mps(machine)))
    assert not hasattr(caught.value, "__notes__")
    assert parts.record() is None
    assert (supervisor.states, machine.compute_mode(0)) == ({}, 0)
    await parts.driver.prepare(share(1, mps(machine)))
    assert machine.pod_limits() == {name(1): 14 * GIB}


async def test_a_second_claim_that_fails_leaves_the_first_its_limit(machine, parts):
    await parts.driver.prepare(share(1, mps(machine)))
    machine.refuse(SET, UNKNOWN)
    with pytest.raises(HardwareError, match=SET):
        await parts.driver.prepare(for_pods(share(2, mps(machine)), 1))
    assert machine.pod_limits() == {name(1): 14 * GIB}
    assert parts.record(2) is None


async def test_a_limit_that_cannot_be_taken_back_keeps_the_claim_for_the_next_try(machine, parts):
    await parts.driver.prepare(share(1, mps(machine)))
    machine.refuse(SET, UNKNOWN)
    with pytest.raises(HardwareError, match=SET):
        await parts.driver.unprepare(ref(1))
    record = parts.record()
    assert record is not None
    assert record.state is ClaimState.STARTED
    assert machine.compute_mode(0) == EXCLUSIVE
    await parts.driver.unprepare(ref(1))
    assert (machine.pod_limits(), machine.compute_mode(0)) == ({}, 0)


async def test_a_repeat_changes_nothing_and_limits_who_has_joined(machine, parts):
    claim = share(1, mps(machine))
    await parts.driver.prepare(claim)
    before = machine.files()
    await parts.driver.prepare(claim)
    assert machine.files() == before
    await parts.driver.prepare(for_pods(claim, 1, 2))
    assert machine.pod_limits() == {name(1): 14 * GIB, name(2): 14 * GIB}
    record = parts.record()
    assert record is not None
    assert [step.pod for step in record.steps if isinstance(step, LimitPod)] == [
        pod_uid(1),
        pod_uid(2),
    ]


async def test_after_a_reboot_the_next_prepare_limits_the_pod_again(machine, parts, supervisor):
    claim = share(1, mps(machine))
    await parts.driver.prepare(claim)
    cgroups.remove_pod(machine.start_pod(1))
    control.reboot(machine.root)
    supervisor.states.clear()
    parts = begin(machine)
    (recovery,) = parts.driver.recover()
    assert recovery.error is None
    assert machine.pod_limits() == {}
    machine.start_pod(1)
    await parts.driver.prepare(claim)
    assert machine.pod_limits() == {name(1): 14 * GIB}


# Pods that come and go ---------------------------------------------------------------------


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def pods():
    return ClaimPods()


@pytest.fixture
def upkeep(parts, told, pods):
    return Upkeep(parts.hardware, parts.journal, parts.driver, parts.lanes, told, pods)


async def test_upkeep_limits_a_pod_that_joined(machine, parts, upkeep, pods, told):
    claim = share(1, mps(machine))
    await parts.driver.prepare(claim)
    pods.learn(for_pods(claim, 1, 2, 3))
    await upkeep.round(parts.cards.gpus.keys())
    assert machine.pod_limits() == {name(1): 14 * GIB, name(2): 14 * GIB}
    before = machine.files()
    await upkeep.round(parts.cards.gpus.keys())
    assert machine.files() == before
    assert told.notes == []
    await parts.driver.unprepare(ref(1))
    assert machine.pod_limits() == {}


async def test_a_pod_that_left_keeps_its_limit_as_long_as_its_cgroup(machine, parts, upkeep, pods):
    claim = for_pods(share(1, mps(machine)), 1, 2)
    await parts.driver.prepare(claim)
    pods.learn(for_pods(claim, 1))
    await upkeep.round(parts.cards.gpus.keys())
    assert machine.pod_limits().keys() == {name(1), name(2)}
    cgroups.remove_pod(machine.start_pod(2))
    await upkeep.round(parts.cards.gpus.keys())
    record = parts.record()
    assert record is not None
    assert [s.pod for s in record.steps if isinstance(s, LimitPod)] == [pod_uid(1)]


async def test_a_limit_that_somebody_removed_is_set_again(machine, parts, upkeep, pods):
    claim = share(1, mps(machine))
    await parts.driver.prepare(claim)
    pods.learn(claim)
    parts.hardware.undo(LimitPod(machine.uuids[0], pod_uid(1), 0))
    await upkeep.round(parts.cards.gpus.keys())
    assert machine.pod_limits() == {name(1): 14 * GIB}


async def test_a_pod_that_cannot_be_limited_is_told_once_until_it_is(
    machine, parts, upkeep, pods, told, caplog
):
    claim = share(1, mps(machine))
    await parts.driver.prepare(claim)
    pods.learn(for_pods(claim, 1, 2))
    machine.refuse(SET, UNKNOWN, count=2)
    for _ in range(2):
        await upkeep.round(parts.cards.gpus.keys())
    (note,) = told.notes
    assert note.startswith(f"claim-1: PodNotLimited: {SET} of ")
    assert caplog.text.count("has no memory limit") == 2
    await upkeep.round(parts.cards.gpus.keys())
    assert machine.pod_limits() == {name(1): 14 * GIB, name(2): 14 * GIB}


async def test_a_claim_that_ended_meanwhile_is_left_alone(machine, parts):
    await parts.driver.prepare(share(1, mps(machine)))
    record = parts.record()
    await parts.driver.unprepare(ref(1))
    assert not parts.driver.limit(record, {pod_uid(2)})
    assert machine.pod_limits() == {}
