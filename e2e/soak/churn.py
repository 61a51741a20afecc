"""Pods come and go while everything else dies and comes back, at moments that a seed decides."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from driver.sim import control
from e2e.soak.meter import Meter
from e2e.soak.scene import CARDS, TEMPLATES, Scene
from kubeletplugin.http1 import MAX_IN_FLIGHT

_PAUSE_S = (0.05, 1.5)
_API_AWAY_S = (2.0, 20.0)
FILES_MAY_GROW = 3  # a call of the kubelet's may be under way
CONNECTIONS = MAX_IN_FLIGHT + 4  # requests at once, two watches, and the HTTP endpoint
RSS_MAY_GROW_MIB = 20.0


@dataclass
class Churn:
    scene: Scene
    names: int = 0
    alive: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    def create(self) -> None:
        name = f"churn-{self.names}"
        self.names += 1
        self.scene.start_pod(name, self.scene.rng.choice(list(TEMPLATES)))
        self.alive.append(name)

    def delete(self) -> None:
        if self.alive:
            name = self.alive.pop(self.scene.rng.randrange(len(self.alive)))
            grace = self.scene.rng.choice((0, 0, 1, 2))
            self.scene.kube.delete("Pod", name, self.scene.namespace, grace_s=grace)

    def kill_plugin(self) -> None:
        self.scene.driver.process.kill()
        self.scene.driver.process.launch()

    def kill_kubelet(self) -> None:
        self.scene.cluster.kill_kubelet()

    def lose_card(self) -> None:
        index = self.scene.rng.randrange(CARDS)
        control.lose(self.scene.driver.sim, index)
        self.lost.append(index)

    def restore_card(self) -> None:
        if self.lost:
            control.restore(self.scene.driver.sim, self.lost.pop())

    def xid(self) -> None:
        control.xid(self.scene.driver.sim, self.scene.rng.randrange(CARDS), 79)

    def reboot(self) -> None:
        self.scene.driver.process.kill()
        self.scene.driver.reboot()
        self.lost.clear()
        self.scene.driver.process.launch()

    def api_away(self) -> None:
        with self.scene.cluster.api_down():
            time.sleep(self.scene.rng.uniform(*_API_AWAY_S))

    def actions(self) -> dict[Callable[[], None], int]:
        """What may happen, and how often against the others."""
        return {
            self.create: 40,
            self.delete: 36,
            self.kill_plugin: 8,
            self.lose_card: 3,
            self.restore_card: 6,
            self.xid: 2,
            self.kill_kubelet: 2,
            self.reboot: 1,
            self.api_away: 1,
        }


def churn(scene: Scene, seconds: float) -> None:
    """Until the time is over; at most as many pods as cards wait or run."""
    work = Churn(scene)
    actions = work.actions()
    end = time.monotonic() + seconds
    with Meter(scene.driver.process) as meter:
        while time.monotonic() < end:
            (act,) = scene.rng.choices(list(actions), list(actions.values()))
            if act == work.create and len(work.alive) >= CARDS:
                act = work.delete
            act()
            scene.report.counts[act.__name__.replace("_", " ")] += 1
            time.sleep(scene.rng.uniform(*_PAUSE_S))
        scene.settle("churn")
    add_growth(scene, "churn", meter)


def add_growth(scene: Scene, phase: str, meter: Meter) -> None:
    grown = meter.growth()
    scene.report.counts["lives of the plugin measured"] += len(meter.warm)
    if meter.warm:  # else no life was long enough, and a zero would say nothing
        scene.report.add(phase, "open files more", grown.files, FILES_MAY_GROW)
        scene.report.add(phase, "MiB resident more", grown.rss_mib, RSS_MAY_GROW_MIB)
    scene.report.add(phase, "connections at most", grown.connections, CONNECTIONS)
