"""One simulated node with the driver's own parts on it: real journal, CDI folder and pynvml.

``Machine`` is what outlives the driver's process; each ``start`` is one life of it.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from api.policy import GpuPolicy, GpuRule, GpuSelector, NodePolicy
from driver.apply.executor import Executor
from driver.hw.card import Cards
from driver.hw.health import HealthSource
from driver.hw.mps import MpsCards
from driver.hw.nvml import Nvml
from driver.lanes import Lanes
from driver.model.claims import Record
from driver.model.gpu import ComputeMode
from driver.model.ids import ClaimUid, DeviceName, GpuUuid
from driver.model.steps import SetComputeMode
from driver.node import Change, NodeCards
from driver.plan.cdi import spec_file_name, spec_file_prefix
from driver.plan.claims import parse_claim
from driver.plan.names import device_names
from driver.plan.prepare import plan_prepare
from driver.plugin import GpuDriver, Identity
from driver.sharing import Seen
from driver.sim import cgroups, control, topology
from driver.sim.profiles import PROFILES
from driver.sim.store import Store
from driver.state.boot import boot_id
from driver.state.cdi_dir import CdiDir
from driver.state.journal import Journal
from driver.state.known import Known
from driver.watching import CardWatch
from kubeletplugin.contract import ClaimRef, DesiredPool, Object
from tests.hw.supervisor import FakeSupervisor

DRIVER = "gpu.aliquot.dev"
NODE = "node-1"
EXCLUSIVE = 3  # nvmlComputeMode_t
TAINTS = frozenset({"taints"})


def uid(n: int = 1) -> str:
    return f"{n:08x}-0000-4000-8000-000000000000"


def ref(n: int = 1) -> ClaimRef:
    return ClaimRef("default", f"claim-{n}", uid(n))


def allocation(*devices: str, mode: str | None = None, admin: bool = False) -> Object:
    """``status.allocation`` for ``devices``, all for one request."""
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device}
        | ({"adminAccess": True} if admin else {})
        for device in devices
    ]
    parameters = {
        "apiVersion": "gpu.aliquot.dev/v1alpha1",
        "kind": "GpuConfig",
        "computeMode": mode,
    }
    config = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {"devices": {"results": results} | ({"config": config} if mode else {})}


def share(
    n: int, *devices: str, memory: str = "14Gi", percent: int = 25, config: Object | None = None
) -> Object:
    """An allocated claim for shares of ``devices``, as ``claim``; each by a request of its own."""
    found = claim(n, *devices)
    result = found["status"]["allocation"]["devices"]["results"]
    for i, one in enumerate(result):
        one["request"] = f"gpu{i}"
        one["shareID"] = uid(100 * n + i)
        one["consumedCapacity"] = {"memory": memory, "shares": "1"}
        if "-mps" in one["device"]:
            one["consumedCapacity"]["computePercent"] = str(percent)
    if config is not None:
        parameters = {"apiVersion": "gpu.aliquot.dev/v1alpha1", **config}
        opaque = {"driver": DRIVER, "parameters": parameters}
        found["status"]["allocation"]["devices"]["config"] = [
            {"source": "FromClaim", "opaque": opaque}
        ]
    found["status"]["reservedFor"] = [{"resource": "pods", "name": f"pod-{n}", "uid": pod_uid(n)}]
    return found


def pod_uid(n: int) -> str:
    return f"{n:08x}-1111-4000-8000-000000000000"


def claim(n: int, *devices: str, **options: Any) -> Object:
    """An allocated ResourceClaim as the API server has it."""
    return {
        "metadata": {"namespace": "default", "name": f"claim-{n}", "uid": uid(n)},
        "status": {"allocation": allocation(*devices, **options)},
    }


WHOLE = NodePolicy(gpus=(GpuRule(GpuSelector(), GpuPolicy(("gpu",))),))
"""Whole cards only, so that what is published is one device a card."""


SHARED = NodePolicy(gpus=(GpuRule(GpuSelector(), GpuPolicy(("gpu", "mps", "timeslice"))),))


def excluded(uuid: str) -> NodePolicy:
    """A policy that offers every card but one."""
    return NodePolicy(gpus=(GpuRule(GpuSelector(uuid=uuid), GpuPolicy(())), *WHOLE.gpus))


class Parts:
    """The driver's parts in one process, wired as the daemon wires them."""

    def __init__(self, machine: "Machine", policy: NodePolicy | None = None) -> None:
        self.boot = boot_id(machine.root / "proc")
        self.nvml = Nvml()
        self.hardware = Cards(self.nvml, machine.root, mps=MpsCards(machine.supervisor))
        self.cards = NodeCards(
            self.hardware,
            Known(machine.known),
            policy or WHOLE,
            driver=DRIVER,
            pool=NODE,
            boot_id=self.boot,
        )
        self.cards.load()
        self.journal = Journal.open(machine.claims)
        self.cdi = CdiDir(machine.cdi, spec_file_prefix(DRIVER))
        self.lanes = Lanes()
        self.identity = Identity(DRIVER, NODE, self.boot)
        self.executor = Executor(self.hardware, self.journal, self.cdi)
        self.driver = GpuDriver(
            self.identity, self.cards, self.journal, self.cdi, self.executor, self.lanes
        )
        self.driver.holder_patience_s = 0.0  # tests of waiting set their own
        self.published: list[DesiredPool] = []
        self.told: list[Change] = []
        self.source = HealthSource(self.nvml)
        self.watch = CardWatch(
            self.cards, self.nvml, self.source, self.journal, self._publish, self.told.append
        )

    def _publish(self) -> None:
        self.published.append(self.pool())

    def pool(self, *held: str, features: frozenset[str] = TAINTS) -> DesiredPool:
        wanted = {DeviceName(name) for name in held} or set(self.watch.held_devices())
        return self.cards.pool(wanted, features)

    def refresh(self) -> None:
        """Enumerate, without the watch's task."""
        self.nvml.open()
        self.cards.refresh(self.watch.held_gpus(), self.watch.places)

    def look_at_supervisor(self) -> tuple[Change, ...]:
        """What ``MpsWatch`` does when something changed there."""
        info, cards = self.hardware.mps.info(), self.hardware.mps.cards()
        return self.cards.take_sharing(Seen(info, cards), self.watch.held_gpus())

    def record(self, n: int = 1) -> Record | None:
        return self.journal.get(ClaimUid(uid(n)))

    def planned(self, raw: Object) -> Record:
        """The record that a prepare would begin with."""
        return plan_prepare(parse_claim(raw, DRIVER, NODE), self.cards.devices, (), self.boot)

    def close(self) -> None:
        self.source.close()
        self.lanes.close()
        self.nvml.close()


class Machine:
    """Folders and simulated cards."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.count = Store(root).read().count
        self.claims = folder / "claims"
        self.cdi = folder / "cdi"
        self.known = folder / "known/cards.json"
        self.supervisor: FakeSupervisor | None = None  # one that outlives the driver
        self._parts: list[Parts] = []

    def start(self, policy: NodePolicy | None = None, *, refresh: bool = True) -> Parts:
        """A new process; the earlier one is gone."""
        self.stop()
        parts = Parts(self, policy)
        self._parts.append(parts)
        if refresh:
            parts.refresh()
        return parts

    def stop(self) -> None:
        while self._parts:
            self._parts.pop().close()

    def pull_out(self, index: int) -> None:
        """NVML lists one card less, and what still has a handle of it gets no answer."""
        assert index == self.count - 1  # only the last one can go
        with Store(self.root).update() as world:
            world.change(index).lost = True
            world.count = index

    # What is there now -------------------------------------------------------------------

    @property
    def uuids(self) -> list[GpuUuid]:
        """In NVML's order, which is that of the indexes in ``driver.sim.control``."""
        world = Store(self.root).read()
        return [
            GpuUuid(card.uuid)
            for card in topology.cards(PROFILES[world.profile], self.count, world.seed)
        ]

    def device(self, index: int) -> str:
        uuids = self.uuids
        return device_names(uuids)[uuids[index]]

    @property
    def cgroups(self) -> Path:
        return self.root / "sys/fs/cgroup"

    def start_pod(self, n: int) -> Path:
        """The cgroup that the kubelet makes for pod ``n``."""
        return cgroups.add_pod(self.cgroups, pod_uid(n))

    def pod_limits(self, index: int = 0) -> dict[str, int]:
        """Limits of pods on a card, hard as soft, by the last part of their path."""
        found = Store(self.root).read().gpu(index).memory_limits
        assert all(each.soft == each.hard for each in found)
        return {Path(each.path).name: each.hard for each in found}

    def compute_mode(self, index: int) -> int:
        return Store(self.root).read().gpu(index).compute_mode

    def cdi_file(self, n: int = 1) -> Path:
        return self.cdi / spec_file_name(DRIVER, ClaimUid(uid(n)))

    def spec(self, n: int = 1) -> Any:
        return json.loads(self.cdi_file(n).read_text())

    def files(self) -> dict[str, int]:
        """Modification times of all that the driver keeps on disk."""
        folders = (self.claims, self.cdi)
        return {
            str(path): path.stat().st_mtime_ns
            for folder in folders
            if folder.exists()
            for path in [folder, *folder.rglob("*")]
        }

    def refuse(self, call: str, code: int, **more: Any) -> None:
        control.inject(self.root, call, code, **more)


def with_steps(record: Record) -> Record:
    """The same record with one step a card."""
    steps = tuple(SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS) for gpu in record.gpus)
    return replace(record, steps=steps)


def taint_keys(pool: DesiredPool) -> dict[str, list[str]]:
    """Keys of the taints, without their prefix, by published device."""
    return {
        device["name"]: [taint["key"].split("/")[1] for taint in device.get("taints", ())]
        for part in pool.slices
        for device in part.devices
    }
