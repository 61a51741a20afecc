"""What claims with shares really use: told once, taken back, evicted where the policy says so."""

import pytest

from api.policy import parse_policy
from driver.pods import ClaimPods
from driver.sharing import Seen
from driver.sim import control
from driver.watchdog import Voice, Watchdog
from kubeletplugin.contract import ClaimRef
from tests.driver.machine import claim, pod_uid, ref, share
from tests.hw.supervisor import INFO, FakeSupervisor

GIB = 1 << 30
RULE = "gpus: [{select: {all: true}, modes: [gpu, mps, timeslice], eviction: %s}]"
PODS = "/api/v1/namespaces/default/pods"


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.statuses: list[str] = []

    def claim_event(self, claim: ClaimRef, kind: str, reason: str, note: str) -> None:
        self.events.append((claim.name, reason, note))

    def status(self, record) -> None:
        self.statuses.append(record.claim.name)

    @property
    def reasons(self):
        return [(name, reason) for name, reason, _ in self.events]


class Rig:
    def __init__(self, machine, api, eviction: str) -> None:
        machine.supervisor = FakeSupervisor(machine.root / "run")
        self.machine = machine
        self.parts = machine.start(parse_policy(RULE % eviction, "policy.yaml"))
        self.parts.cards.take_sharing(Seen(INFO), set())
        self.pods, self.told = ClaimPods(), Told()
        self.parts.driver.on_claim = self.pods.learn
        voice = Voice(self.told, self.told.status, api.client())
        self.dog = Watchdog(self.parts.journal, self.parts.cards, self.pods, voice)

    async def prepare(self, n: int, **more) -> None:
        await self.parts.driver.prepare(share(n, f"{self.machine.device(0)}-mps", **more))

    def use(self, n: int, gib: float, busy: int = 0, pid: int | None = None) -> None:
        """A process of the pod of claim ``n``."""
        pid = pid or 1000 + n
        control.set_process(self.machine.root, 0, pid, int(gib * GIB), "mps")
        control.set_busy(self.machine.root, 0, pid, busy)
        control.place_process(self.machine.root, pid, name="vllm", pod=pod_uid(n))

    async def look(self, times: int = 2) -> None:
        for _ in range(times):
            await self.dog.round()


@pytest.fixture
def rig(machine, api):
    return Rig(machine, api, "never")


async def test_a_claim_that_uses_too_much_is_told_and_taken_back(rig):
    await rig.prepare(1)
    await rig.prepare(2, memory="20Gi")
    rig.use(1, 8)
    rig.use(1, 7, pid=77)
    rig.use(2, 19)
    await rig.look(1)
    assert rig.told.events == []
    await rig.look(5)
    ((name, reason, note),) = rig.told.events
    assert (name, reason) == ("claim-1", "ShareExceeded")
    assert "15360Mi of memory, 14336Mi was given" in note
    assert "vllm (77), vllm (1001)" in note
    assert (rig.told.statuses, rig.dog.over_limit) == (["claim-1"], 1)
    (excess,) = rig.dog.told(rig.parts.record(1).claim.uid)
    assert excess.gpu == rig.machine.uuids[0]
    control.clear_processes(rig.machine.root, 0)
    await rig.look(5)
    assert rig.told.reasons[1:] == [("claim-1", "ShareRespected")]
    assert (rig.told.statuses, rig.dog.over_limit) == (["claim-1"] * 2, 0)


async def test_compute_is_looked_at_too(rig):
    await rig.prepare(1, percent=25)
    rig.use(1, 1, busy=80)
    await rig.look()
    assert "80 % of the multiprocessors, 25 % was given" in rig.told.events[0][2]


async def test_nothing_is_read_while_no_card_is_shared(rig, monkeypatch):
    await rig.parts.driver.prepare(claim(1, rig.machine.device(0)))
    monkeypatch.setattr(rig.parts.cards, "uses", lambda gpu: pytest.fail("it was read"))
    await rig.look()


async def test_a_released_claim_is_forgotten(rig):
    await rig.prepare(1)
    rig.use(1, 20)
    await rig.look()
    await rig.parts.driver.unprepare(ref(1))
    await rig.look()
    assert rig.dog.over_limit == 0
    assert rig.told.reasons == [("claim-1", "ShareExceeded")]


async def test_a_card_that_cannot_be_read_is_said_once_and_judged_later(rig, caplog):
    await rig.prepare(1)
    rig.use(1, 20)
    await rig.look()
    control.lose(rig.machine.root, 0)
    await rig.look(4)
    assert caplog.text.count("cannot be read") == 1
    assert rig.dog.over_limit == 1
    control.restore(rig.machine.root, 0)
    await rig.look()
    assert rig.dog.over_limit == 1


# Eviction -----------------------------------------------------------------------------------


async def pod(api, n: int) -> str:
    """The pod of claim ``n``; its UID is the server's."""
    made = await api.client().create(
        PODS, {"metadata": {"name": f"pod-{n}"}, "spec": {"containers": []}}
    )
    return str(made["metadata"]["uid"])


@pytest.fixture
async def evicting(machine, api):
    rig = Rig(machine, api, "overMemory")
    uid = await pod(api, 1)
    wanted = share(1, f"{machine.device(0)}-mps")
    wanted["status"]["reservedFor"][0]["uid"] = uid
    await rig.parts.driver.prepare(wanted)
    control.set_process(machine.root, 0, 5, 20 * GIB, "mps")
    control.place_process(machine.root, 5, pod=uid)
    return rig


async def test_the_policy_may_evict_who_uses_too_much_memory(evicting, api):
    await evicting.look()
    assert api.objects("pods") == []
    assert evicting.told.reasons == [("claim-1", "ShareExceeded"), ("claim-1", "PodEvicted")]
    await evicting.look()
    assert len(evicting.told.events) == 2


async def test_what_is_refused_for_now_is_tried_again(evicting, api, caplog):
    api.fail(429, verb="create", resource="pods/eviction", reason="TooManyRequests", count=2)
    await evicting.look(3)
    assert len(api.objects("pods")) == 1
    assert "is not evicted" in caplog.text
    await evicting.look()
    assert api.objects("pods") == []


async def test_another_pod_of_that_name_is_left_alone(evicting, api):
    await api.client().delete(f"{PODS}/pod-1")
    await pod(api, 1)
    await evicting.look(3)
    assert len(api.objects("pods")) == 1


async def test_without_that_policy_nobody_is_evicted(rig, api):
    await pod(api, 1)
    await rig.prepare(1)
    rig.use(1, 20)
    await rig.look(3)
    assert len(api.objects("pods")) == 1


async def test_too_much_compute_evicts_nobody(evicting, api):
    control.set_process(evicting.machine.root, 0, 5, GIB, "mps")
    control.set_busy(evicting.machine.root, 0, 5, 90)
    await evicting.look(3)
    assert len(api.objects("pods")) == 1
    assert evicting.told.reasons == [("claim-1", "ShareExceeded")]
