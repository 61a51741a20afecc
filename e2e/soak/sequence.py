"""Thousands of calls at the plugin's socket against a model of what must come of them.

Claims stand in each other's way on purpose: several for each card. In most bursts a held card is
left to its holder, since a claim that is refused has waited 10 s for it. A burst holds calls for
different cards at once, so that each answer is certain; at seeded moments the plugin is killed in
the middle of one, or a CDI file is deleted.
"""

import asyncio
from dataclasses import dataclass, field

import grpc.aio

from e2e.soak.churn import add_growth
from e2e.soak.meter import Meter
from e2e.soak.scene import CARDS, Scene
from e2e.workloads import allocated_by_hand, opaque
from kubeletplugin.contract import ClaimRef
from kubeletplugin.testing.kubelet import DRA_S, PluginClient

_CLAIMS_A_CARD = 3
_KILL_ONE_IN = 400  # bursts
_DAMAGE_ONE_IN = 50
_RENEW_ONE_IN = 40
_CLASH_ONE_IN = 60  # bursts: the driver waits 10 s for the holder before it refuses
_CHECK_EVERY = 25
_PARAMETERS = {
    "apiVersion": "gpu.aliquot.dev/v1alpha1",
    "kind": "GpuConfig",
    "computeMode": "ExclusiveProcess",
}


@dataclass
class Claim:
    name: str
    card: int
    device: str
    exclusive: bool
    ref: ClaimRef


@dataclass(frozen=True)
class Call:
    claim: Claim
    prepare: bool


@dataclass
class Sequence:
    scene: Scene
    claims: list[Claim] = field(default_factory=list)
    holder: dict[int, Claim] = field(default_factory=dict)  # by card
    wrong: list[str] = field(default_factory=list)
    steps: int = 0

    def set_up(self) -> None:
        devices = sorted(device["name"] for device in self.scene.driver.devices())
        for n in range(_CLAIMS_A_CARD * CARDS):
            card, exclusive = n % CARDS, n % 3 == 0
            name = f"step-{n}"
            ref = self.allocate(name, devices[card], exclusive)
            self.claims.append(Claim(name, card, devices[card], exclusive, ref))

    def allocate(self, name: str, device: str, exclusive: bool) -> ClaimRef:
        driver = self.scene.driver
        result = {"driver": driver.name, "pool": driver.cluster.node_name, "device": device}
        config = [opaque(driver.name, _PARAMETERS)] if exclusive else []
        return allocated_by_hand(driver.kube, self.scene.namespace, name, [result], *config)

    def renew(self) -> None:
        """A claim that holds nothing is deleted and made again under its name."""
        free = [c for c in self.claims if self.holder.get(c.card) is not c]
        claim = self.scene.rng.choice(free)
        kube, namespace = self.scene.kube, self.scene.namespace
        kube.delete("ResourceClaim", claim.name, namespace)
        kube.wait_gone("ResourceClaim", claim.name, namespace)
        claim.ref = self.allocate(claim.name, claim.device, claim.exclusive)

    def burst(self) -> list[Call]:
        rng = self.scene.rng
        clash = rng.random() * _CLASH_ONE_IN < 1
        return [
            self._call(card, prepare=rng.random() < 0.6, clash=clash)
            for card in rng.sample(range(CARDS), rng.randint(1, CARDS))
        ]

    def _call(self, card: int, *, prepare: bool, clash: bool) -> Call:
        """About any claim of the card; where it is held, and they need not ``clash``, only the
        holder is prepared."""
        some = [claim for claim in self.claims if claim.card == card]
        holder = self.holder.get(card)
        if prepare and holder is not None and not clash:
            some = [holder]
        return Call(self.scene.rng.choice(some), prepare)

    def run(self, steps: int) -> None:
        bursts = 0
        rng = self.scene.rng
        while self.steps < steps:
            calls = self.burst()
            kill = rng.random() * _KILL_ONE_IN < 1
            answers = asyncio.run(self._all(calls, rng.uniform(0, 0.02) if kill else None))
            if kill:
                self.scene.report.counts["kills in a burst"] += 1
                self.scene.driver.process.start()
                answers = asyncio.run(self._all(calls, None))  # what was cut off is asked again
            for call, answer in zip(calls, answers, strict=True):
                self.judge(call, answer)
            self.steps += len(calls)
            bursts += 1
            if rng.random() * _DAMAGE_ONE_IN < 1 and self.scene.driver.cdi_files():
                rng.choice(self.scene.driver.cdi_files()).unlink()
                self.scene.report.counts["CDI files deleted"] += 1
            if rng.random() * _RENEW_ONE_IN < 1:
                self.renew()
            if bursts % _CHECK_EVERY == 0:
                self.check()

    async def _all(self, calls: list[Call], kill_after_s: float | None) -> list[str]:
        driver = self.scene.driver
        socket = driver.plugin_dir / "dra.sock"
        async with PluginClient(driver.name, socket, ()) as client:
            tasks = [asyncio.create_task(_one(client, call)) for call in calls]
            if kill_after_s is not None:
                await asyncio.sleep(kill_after_s)
                driver.process.kill()
            return [await task for task in tasks]

    def judge(self, call: Call, answer: str) -> None:
        """Compare one answer with the model, and let the model follow."""
        claim, holder = call.claim, self.holder.get(call.claim.card)
        if not call.prepare:
            self._expect(answer == "", f"unprepare of {claim.name}: {answer}")
            if holder is claim:
                del self.holder[claim.card]
        elif holder is None or holder is claim:
            self._expect(answer == "", f"prepare of {claim.name}: {answer}")
            self.holder[claim.card] = claim
        else:
            named = holder.ref.uid in answer
            self._expect(named, f"prepare of {claim.name}, held by {holder.name}: {answer!r}")

    def check(self) -> None:
        """Node and model agree. A deleted CDI file may be missing until it is looked at."""
        driver = self.scene.driver
        held = sorted(claim.ref.uid for claim in self.holder.values())
        self._expect(driver.records() == held, f"records {driver.records()}, wanted {held}")
        files = {path.stem.rpartition("_")[2] for path in driver.cdi_files()}
        self._expect(files <= set(held), f"CDI files of {files - set(held)}")
        modes = sum(claim.exclusive for claim in self.holder.values())
        self._expect(self.scene.modes() == modes, f"{self.scene.modes()} modes, wanted {modes}")

    def _expect(self, true: bool, text: str) -> None:
        if not true:
            self.wrong.append(text)
            print(f"step {self.steps}: {text}", flush=True)  # noqa: T201 - a command's output

    def tear_down(self) -> None:
        for claim in self.claims:
            self.scene.driver.unprepare(claim.ref)
            self.scene.kube.delete("ResourceClaim", claim.name, self.scene.namespace)


async def _one(client: PluginClient, call: Call) -> str:
    ref = call.claim.ref
    try:
        if call.prepare:
            return (await client.prepare([ref], DRA_S))[ref.uid].error
        return (await client.unprepare([ref], DRA_S))[ref.uid]
    except grpc.aio.AioRpcError as error:
        return f"no answer: {error.code().name}"


def sequence(scene: Scene, steps: int) -> None:
    run = Sequence(scene)
    run.set_up()
    with Meter(scene.driver.process) as meter:
        run.run(steps)
    run.check()
    run.tear_down()
    scene.report.counts["steps at the socket"] += run.steps
    scene.report.add("sequence", "answers or states not as wanted", len(run.wrong))
    add_growth(scene, "sequence", meter)
    scene.settle("sequence")
