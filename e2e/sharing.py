"""Cards that are shared: a plugin that allows it, and the node's MPS supervisor beside it, which
runs NVIDIA's own control program."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from driver.sim.store import Store
from e2e.cluster.images import with_program
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.packages import mps_program
from e2e.cluster.polling import poll
from e2e.cluster.processes import ManagedProcess
from e2e.driver_node import DriverNode, start_driver
from e2e.partitions import OFTEN, instances, remove_pods
from e2e.workloads import LOOK, SLEEP, claim_spec, container, pod, seen, template
from mps.cgroups import MOUNTS, hierarchies
from mps.client import MpsClient
from mps.protocol import CardState, MpsUnreachableError
from mps.settings import CGROUP

IMAGE = "localhost/mps:1"
POLICY = """
orphanGraceSeconds: 2
gpus: [{select: {all: true}, modes: [gpu, mps, timeslice, mig]}]
"""
GIB = 1 << 30
# Whoever asks while another front end does gets no answer, on 535 to 555.
_ASKING = (
    "ask() { for n in 1 2 3 4 5 6 7 8 9; do said=$(echo $* | nvidia-cuda-mps-control 2>/dev/null);"
    ' [ -n "$said" ] && break; sleep 0.1; done; echo $said; }; '
)
_PERCENT = "ask get_default_active_thread_percentage"
# The card's daemon is asked from inside: what it answers comes as variables, as ``seen`` reads.
ASK = (
    f"{_ASKING}echo ASKED_PERCENT=$({_PERCENT}); "
    "echo ASKED_MEMORY=$(ask get_default_device_pinned_mem_limit 0); "
    "echo PIPE_MODE=$(stat -c %a $CUDA_MPS_PIPE_DIRECTORY); "
    "echo SHM_MODE=$(stat -c %a /dev/shm); "
    "env | grep ^CUDA_; "
)


@dataclass(kw_only=True)
class SharingNode(DriverNode):
    """The plugin, the supervisor's process and what they leave on the node."""

    supervisor: ManagedProcess
    run_dir: Path

    @property
    def client(self) -> MpsClient:
        return MpsClient(self.run_dir / "supervisor.sock")

    def daemons(self) -> tuple[CardState, ...]:
        """What the supervisor serves."""
        return self.client.cards()

    def daemon(self) -> CardState:
        """The one card that is served."""
        (found,) = self.daemons()
        return found

    def pids(self) -> dict[str, int | None]:
        """Control daemons by card."""
        return {state.spec.gpu: state.pid for state in self.daemons()}

    def modes(self) -> list[int]:
        """Compute modes of all cards that are not in the default one."""
        world = Store(self.sim).read()
        found = [world.gpu(index).compute_mode for index in range(world.count)]
        return [mode for mode in found if mode]

    def intervals(self) -> list[int]:
        """Time slices of all cards that are not the default one."""
        world = Store(self.sim).read()
        found = [world.gpu(index).time_slice for index in range(world.count)]
        return [each for each in found if each]

    def left(self) -> list[Any]:
        """Everything that no longer may be there when the last claim is gone."""
        return [
            *self.records(),
            *self.cdi_files(),
            *self.daemons(),
            *self.modes(),
            *self.intervals(),
            *instances(self.sim),
            *(path for path in self.run_dir.iterdir() if path.is_dir()),
        ]

    def wait_nothing_left(self) -> None:
        poll(
            lambda: not self.left(), "the node to be as new", 120, detail=lambda: str(self.left())
        )

    def taints(self) -> set[tuple[str, str]]:
        """Key and value of every taint of a shared device."""
        return {
            (taint["key"], taint["value"])
            for device in self.devices(shared=True)
            for taint in device.get("taints", ())
        }


def answers(client: MpsClient) -> bool:
    try:
        return bool(client.info().protocols)
    except MpsUnreachableError:
        return False


def start_supervisor(cluster: LocalCluster) -> tuple[ManagedProcess, Path]:
    """``aliquot mps serve`` as its DaemonSet runs it, with the real control program."""
    run_dir = cluster.layout.root / "mps"
    words = {
        "--run-dir": run_dir,
        "--state-dir": cluster.layout.root / "mps-state",
        "--control-program": mps_program(),
        "--probe-interval": 1,
    }
    options = [f"{name}={value}" for name, value in words.items()]
    process = cluster.spawn(
        "mps-supervisor", [sys.executable, "-m", "cli.main", "mps", "serve", *options]
    )
    client = MpsClient(run_dir / "supervisor.sock")
    process.ready = lambda: answers(client)
    process.start()
    return process, run_dir


@contextmanager
def sharing(
    cluster: LocalCluster, simulate: str, policy: str = POLICY, *extra: str
) -> Iterator[SharingNode]:
    """Both processes; afterwards both run, all pods of tests are gone and nothing is left."""
    import_image(cluster)
    file = cluster.layout.root / "sharing.yaml"
    file.write_text(policy)
    supervisor, run_dir = start_supervisor(cluster)
    socket = f"--mps-socket={run_dir / 'supervisor.sock'}"
    node = start_driver(cluster, f"--config={file}", socket, *OFTEN, *extra, simulate=simulate)
    shared = SharingNode(**vars(node), supervisor=supervisor, run_dir=run_dir)
    poll(lambda: shared.devices(shared=True), "shared devices to be published")
    try:
        yield shared
    finally:
        for process in (supervisor, node.process):
            if not process.running:
                process.start()
        remove_pods(cluster.kube)
        shared.wait_nothing_left()
        node.process.stop()
        supervisor.stop()
        remove_groups()


def node_of(simulate: str) -> Any:
    """Fixture ``driver`` of a module: the node with these cards, started once."""

    @pytest.fixture(scope="module", name="driver")
    def started(cluster: LocalCluster) -> Iterator[SharingNode]:
        with sharing(cluster, simulate) as node:
            yield node

    return started


def remove_groups() -> None:
    """The folder in which daemons had their cgroups, if nobody else uses it."""
    for root in hierarchies(Path("/sys/fs/cgroup"), MOUNTS.read_text(encoding="utf-8")):
        folder = root / CGROUP
        if folder.is_dir() and not any(each.is_dir() for each in folder.iterdir()):
            folder.rmdir()


def import_image(cluster: LocalCluster) -> None:
    """Pods can run image ``IMAGE``: busybox, and the control program with glibc."""
    archive = cluster.layout.root / "mps-image.tar"
    if not archive.exists():
        archive.write_bytes(with_program(IMAGE, mps_program()))
        cluster.import_image(archive)


def share(
    memory: str | None = None, percent: str | None = None, name: str = "gpu", **more: Any
) -> Object:
    """A request for a share; None: what the policy gives."""
    wish = {"memory": memory, "computePercent": percent}
    requests = {key: value for key, value in wish.items() if value is not None}
    exactly: Object = {"deviceClassName": "gpu-share", **more}
    if requests:
        exactly["capacity"] = {"requests": requests}
    return {"name": name, "exactly": exactly}


def turn(name: str = "gpu") -> Object:
    """A request for a time slice."""
    return {"name": name, "exactly": {"deviceClassName": "gpu-timeslice"}}


def start(
    kube: Kube, namespace: str, name: str, *requests: Object, ask: bool = False, **more: Any
) -> None:
    """A pod with one claim of its own; ``ask``: it talks to the card's daemon."""
    spec = claim_spec(*requests, **more)
    made = pod(name, namespace, (ASK if ask else "") + LOOK + SLEEP, templates={"c": name})
    if ask:
        made["spec"]["containers"][0]["image"] = IMAGE
    kube.apply([template(name, namespace, spec), made])


def told(kube: Kube, namespace: str, name: str, container_name: str = "") -> dict[str, str]:
    """The environment that the container saw, and what the daemon answered it."""
    return seen(kube, name, namespace, container_name)[0]


def asked_now(kube: Kube, namespace: str, name: str) -> str:
    """The daemon's percentage as the container reads it at this moment."""
    return kube.exec(name, ["sh", "-c", _ASKING + _PERCENT], namespace=namespace).strip()


def asking(name: str, request: str) -> Object:
    """A container of its own for one request of the pod's claim ``c``."""
    made = container(ASK + LOOK + SLEEP, [{"name": "c", "request": request}], name)
    return {**made, "image": IMAGE}


def claim_of(kube: Kube, namespace: str, pod_name: str) -> Object:
    """The claim that was made for a pod."""
    found = [
        item
        for item in kube.list("ResourceClaim", namespace)
        if any(owner["name"] == pod_name for owner in item["metadata"].get("ownerReferences", ()))
    ]
    assert len(found) == 1, f"claims of pod {pod_name}: {found}"
    return found[0]


def results(found: Object) -> list[Object]:
    """What was allocated to a claim."""
    allocated: list[Object] = found["status"]["allocation"]["devices"]["results"]
    return allocated


def status_of(kube: Kube, namespace: str, pod_name: str) -> Object:
    """The first entry of ``status.devices`` of the pod's claim, once it is written."""

    def written() -> Object | None:
        devices = claim_of(kube, namespace, pod_name)["status"].get("devices")
        return devices[0] if devices else None

    return poll(written, f"status.devices of the claim of pod {pod_name}")


def ready_condition(status: Mapping[str, Any]) -> Object:
    """Condition ``Ready`` of an entry of ``status.devices``."""
    found: Object = next(c for c in status["conditions"] if c["type"] == "Ready")
    return found


def memory(quantity: str) -> int:
    """Bytes of a quantity as the API server writes memory."""
    for suffix, size in (("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)):
        if quantity.endswith(suffix):
            return int(quantity.removesuffix(suffix)) * size
    return int(quantity)
