"""Bad input is refused with a text that names the object and what to change; nothing else suffers.

A pod with a card of its own runs beside every test: it, its record, its CDI file, the
ResourceSlices and the plugin's process are the same afterwards, and nothing else is left.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver.sim import control
from driver.sim.store import Store
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, command, other_driver, start_driver
from e2e.workloads import (
    allocated_by_hand,
    claim,
    claim_spec,
    opaque,
    pod,
    ref_of,
    seen,
    template,
    uuids,
)
from kubeletplugin.contract import ClaimRef

API = f"{DRIVER}/v1alpha1"
PATH = "status.allocation.devices.config[0].opaque.parameters"


@dataclass
class Bystander:
    """A running pod, and everything that must not change."""

    driver: DriverNode
    namespace: str
    pid: int
    slices_too: bool = True

    def state(self) -> object:
        kube = self.driver.kube
        found = kube.get("Pod", "bystander", self.namespace)
        files = {
            path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in [*self.driver.cdi_files(), self.driver.plugin_dir / "claims"]
            if path.is_file()
        }
        return {
            "pod": (found["metadata"]["uid"], found["status"]["phase"]),
            "restarts": [c["restartCount"] for c in found["status"]["containerStatuses"]],
            "records": self.driver.records(),
            "files": files,
            "slices": [
                s["metadata"]["resourceVersion"] for s in self.driver.slices() if self.slices_too
            ],
            "modes": modes(self.driver),
            "pid": self.driver.process.pid,
        }


def modes(node: DriverNode) -> set[int]:
    """Compute modes of the node's cards."""
    return {state.compute_mode for state in Store(node.sim).read().gpus.values()}


@pytest.fixture(scope="module")
def policy(cluster: LocalCluster) -> Path:
    path = cluster.layout.root / "bad-input-policy.yaml"
    path.write_text("orphanGraceSeconds: 86400\n")
    return path


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster, policy: Path) -> Iterator[DriverNode]:
    options = ("--refresh-interval=0.5", "--reconcile-interval=1", f"--config={policy}")
    node = start_driver(cluster, *options)
    node.wait_published(8)
    yield node
    node.process.stop()


@pytest.fixture(scope="module")
def bystander(driver: DriverNode) -> Iterator[Bystander]:
    kube = driver.kube
    name = kube.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "bystander-"}}
    )["metadata"]["name"]
    kube.wait("ServiceAccount", "default", lambda _: True, namespace=name)
    kube.apply(template("bystander", name, claim_spec()))
    kube.apply(pod("bystander", name, templates={"c": "bystander"}))
    kube.wait_pod("bystander", namespace=name)
    assert len(uuids(seen(kube, "bystander", name)[0])) == 1
    yield Bystander(driver, name, driver.process.pid)
    kube.delete("Pod", "bystander", name, grace_s=0)
    driver.wait_clean()
    kube.delete("Namespace", name)


@pytest.fixture
def slices_are_wanted_to_change() -> None:
    """For tests that change what is published."""


@pytest.fixture(autouse=True)
def nothing_else_is_affected(
    bystander: Bystander, request: pytest.FixtureRequest
) -> Iterator[None]:
    bystander.slices_too = "slices_are_wanted_to_change" not in request.fixturenames
    before = bystander.state()
    yield
    poll(
        lambda: bystander.state() == before,
        "all to be as before the bad input",
        timeout_s=20,
        detail=lambda: f"{before} became {bystander.state()}",
    )


@pytest.fixture
def free(driver: DriverNode, bystander: Bystander) -> Object:
    """An allocation result: a device that nobody holds."""
    return result(free_device(driver, bystander.namespace))


def free_device(driver: DriverNode, namespace: str) -> str:
    held = held_device(driver.kube, namespace)
    return next(str(d["name"]) for d in driver.devices() if d["name"] != held)


def held_device(kube: Kube, namespace: str) -> str:
    (found,) = kube.list("ResourceClaim", namespace)
    return str(found["status"]["allocation"]["devices"]["results"][0]["device"])


def result(device: str, **more: str) -> Object:
    return {"driver": DRIVER, "device": device, **more}


@pytest.fixture
def hand(kube: Kube, namespace: str, cluster: LocalCluster):
    """Allocate by hand, in the node's pool unless the result says otherwise."""

    def make(name: str, results: list[Object], *config: Object) -> ClaimRef:
        filled = [{"pool": cluster.node_name, **each} for each in results]
        return allocated_by_hand(kube, namespace, name, filled, *config)

    return make


def gpu_config(**fields: object) -> Object:
    return {"apiVersion": API, "kind": "GpuConfig", **fields}


# Configuration, through the kubelet ----------------------------------------------------------


def refused_text(kube: Kube, namespace: str, parameters: Object) -> str:
    """The error of a pod whose claim has these parameters; the pod is deleted."""
    kube.apply(claim("c", namespace, claim_spec(config=[opaque(DRIVER, parameters)])))
    kube.apply(pod("p", namespace, claims={"c": "c"}))

    def told() -> list[str]:
        return [
            e["message"]
            for e in kube.events("p", namespace)
            if e["reason"] == "FailedPrepareDynamicResources"
        ]

    text = str(poll(told, "the pod's event")[0])
    kube.delete("Pod", "p", namespace, grace_s=0)
    kube.wait_gone("Pod", "p", namespace)
    return text


def test_an_unknown_version_of_the_config_is_refused(kube: Kube, namespace: str):
    text = refused_text(kube, namespace, {"apiVersion": f"{DRIVER}/v9", "kind": "GpuConfig"})

    assert f"{PATH}.apiVersion" in text
    assert f"{DRIVER}/v9" in text
    assert API in text


def test_every_unknown_field_is_named_with_its_path(kube: Kube, namespace: str):
    text = refused_text(kube, namespace, gpu_config(computMode="Default", memory="14Gi"))

    assert f"{PATH}.computMode" in text
    assert f"{PATH}.memory" in text
    assert "computeMode" in text.replace(f"{PATH}.computMode", "")  # what there is instead


def test_config_for_another_driver_is_not_looked_at(
    kube: Kube, namespace: str, driver: DriverNode
):
    other = opaque("other.example.com", {"apiVersion": "what/ever", "kind": "Nonsense", "a": 1})
    kube.apply(claim("c", namespace, claim_spec(config=[other])))
    kube.apply(pod("p", namespace, claims={"c": "c"}))

    kube.wait_pod("p", namespace=namespace)

    kube.delete("Pod", "p", namespace, grace_s=0)
    poll(lambda: len(driver.records()) == 1, "the claim to be unprepared")


# Configuration, at the socket ----------------------------------------------------------------


def nested(depth: int) -> object:
    """What fits into the 10 KiB of opaque parameters, and is too deep for many a parser."""
    found: object = 1
    for _ in range(depth):
        found = [found]
    return found


@contextmanager
def deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


ODD = {
    "empty": ({}, ".apiVersion"),
    "nulls": ({"apiVersion": None, "kind": None}, ".apiVersion"),
    "a kind that is no text": ({"apiVersion": API, "kind": {"a": []}}, ".kind"),
    "a mode that is no text": (gpu_config(computeMode={}), ".computeMode"),
    "a mode that is not known": (gpu_config(computeMode="Exclusive"), "ExclusiveProcess"),
    "a field without a name": (gpu_config(**{"": None}), PATH),
    "a field that holds line ends": (gpu_config(**{"a\nb\x00": "x\ny"}), PATH),
    "deep": (gpu_config(x=nested(400)), ".x"),
}


@pytest.mark.parametrize(("parameters", "told"), ODD.values(), ids=list(ODD))
def test_odd_parameters_are_refused(driver: DriverNode, hand, free, parameters, told: str):
    ref = hand("c", [free], opaque(DRIVER, parameters))

    answer = driver.prepare(ref)

    assert told in answer.error
    assert PATH in answer.error
    assert "\n" not in answer.error
    assert answer.devices == ()
    assert driver.unprepare(ref) == ""


def test_a_null_that_may_be_left_out_is_left_out(driver: DriverNode, hand, free):
    ref = hand("c", [free], opaque(DRIVER, gpu_config(computeMode=None)))

    assert driver.prepare(ref).error == ""
    assert driver.unprepare(ref) == ""


def test_parameters_too_deep_for_the_parser_concern_their_claim_alone(
    driver: DriverNode, hand, free
):
    with deep_recursion():  # of the test's own encoder
        ref = hand("c", [free], opaque(DRIVER, gpu_config(x=nested(4000))))

    answer = driver.prepare(ref)

    assert answer.error
    assert "internal error" not in answer.error


def test_parameters_that_the_api_server_writes_anew_are_told_once(driver: DriverNode, hand, free):
    """The client of these tests writes JSON with spaces, kubectl does not. A patch of the status
    removes them, which Kubernetes 1.36 and newer refuses as a change of the allocation."""
    ref = hand("c", [free], opaque(DRIVER, gpu_config()))

    def told() -> int:
        text = driver.process.log.read_text()
        return len(re.findall(f"{ref.uid} not written: .*in its shortest form", text))

    assert driver.prepare(ref).error == ""
    poll(told, "the log to say why the claim has no status")
    (path,) = [path for path in driver.cdi_files() if ref.uid in path.name]
    for _ in range(3):  # each time a round of the reconciler has passed
        path.unlink()
        poll(path.exists, "the CDI file to be back")
    assert told() == 1
    assert driver.unprepare(ref) == ""


# Allocations ---------------------------------------------------------------------------------


def test_a_claim_that_is_not_allocated_is_refused(driver: DriverNode, kube: Kube, namespace: str):
    ref = ref_of(kube.create(claim("c", namespace, claim_spec())))

    error = driver.prepare(ref).error

    assert f"{namespace}/c" in error
    assert "not allocated" in error


def test_an_unknown_device_is_refused_with_those_there_are(driver: DriverNode, hand):
    error = driver.prepare(hand("c", [result("gpu-00000000")])).error

    assert "gpu-00000000" in error
    assert all(device["name"] in error for device in driver.devices())


def test_an_unknown_pool_is_refused(driver: DriverNode, hand, free, cluster: LocalCluster):
    error = driver.prepare(hand("c", [{**free, "pool": "elsewhere"}])).error

    assert "elsewhere" in error
    assert cluster.node_name in error
    assert "results[0]" in error


def test_a_claim_that_was_made_again_is_refused(
    driver: DriverNode, hand, free, kube: Kube, namespace: str
):
    old = hand("c", [free])
    kube.delete("ResourceClaim", "c", namespace)
    kube.wait_gone("ResourceClaim", "c", namespace)
    new = hand("c", [free])

    error = driver.prepare(old).error

    assert old.uid in error
    assert new.uid in error
    assert f"{namespace}/c" in error
    assert driver.prepare(new).error == ""
    assert driver.unprepare(old) == ""  # of a claim that it does not know: done
    assert new.uid in driver.records()
    assert driver.unprepare(new) == ""


def test_a_claim_that_is_gone_is_refused(driver: DriverNode, hand, free, kube: Kube, namespace):
    ref = hand("c", [free])
    kube.delete("ResourceClaim", "c", namespace)
    kube.wait_gone("ResourceClaim", "c", namespace)

    error = driver.prepare(ref).error

    assert f"{namespace}/c" in error
    assert "does not exist any more" in error


def test_a_device_that_is_held_is_refused_with_its_holder(
    driver: DriverNode, hand, kube: Kube, bystander: Bystander
):
    (holder,) = kube.list("ResourceClaim", bystander.namespace)
    device = held_device(kube, bystander.namespace)

    error = driver.prepare(hand("c", [result(device)])).error

    assert device in error
    assert f"{bystander.namespace}/{holder['metadata']['name']}" in error
    assert holder["metadata"]["uid"] in error


def test_a_good_claim_in_the_call_of_a_bad_one_is_prepared(driver: DriverNode, hand, free):
    bad, good = hand("bad", [result("gpu-00000000")]), hand("good", [free])

    answers = driver.prepare_all([bad, good])

    assert "gpu-00000000" in answers[bad.uid].error
    assert (answers[good.uid].error, len(answers[good.uid].devices)) == ("", 1)
    assert driver.unprepare(good) == ""


# The disk ------------------------------------------------------------------------------------


@contextmanager
def tmpfs(folder: Path, size: str = "64k") -> Iterator[Path]:
    """A small file system of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)


def fill(folder: Path, pages_left: int = 0) -> Path:
    """Use up a small file system but for so many pages."""
    filler, page = folder / "filler", 4096
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * page):
                pass
        except OSError:
            file.truncate((filler.stat().st_size // page - pages_left) * page)
    return filler


@pytest.fixture
def other(cluster: LocalCluster) -> Iterator[DriverNode]:
    """Another plugin with folders and cards of its own. Not started."""
    node = other_driver(cluster, "bad.example.com", 8090, "--refresh-interval=0.5")
    yield node
    node.process.stop()
    for folder in (node.plugin_dir, node.sim):
        shutil.rmtree(folder, ignore_errors=True)
    for path in node.cdi_files():
        path.unlink()


def hand_of(node: DriverNode, device: int = 0) -> list[Object]:
    devices = sorted(each["name"] for each in node.devices())
    return [{"driver": node.name, "device": devices[device]}]


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != "filler")


@pytest.mark.parametrize("pages", [0, 1], ids=["for no record", "for STARTED alone"])
def test_a_full_disk_refuses_and_leaves_nothing(other: DriverNode, hand, pages: int):
    folder = other.plugin_dir / "claims"
    with tmpfs(folder):
        other.process.start()
        other.wait_published(2)
        config = opaque(other.name, gpu_config(computeMode="ExclusiveProcess"))
        first = hand("first", hand_of(other, 0))
        second = hand("second", hand_of(other, 1), config)
        assert other.prepare(first).error == ""
        before = left(folder)
        filler = fill(folder, pages)

        error = other.prepare(second).error

        assert str(folder) in error
        assert "ENOSPC" in error
        assert "--plugin-dir" in error
        assert left(folder) == before
        assert len(other.cdi_files()) == 1
        assert modes(other) <= {0}
        assert other.prepare(first).error == ""  # a repeat needs no space
        assert other.unprepare(second) == ""
        assert other.unprepare(first) == ""  # nor does giving back
        assert left(folder) == []
        assert other.cdi_files() == []

        filler.unlink()
        assert other.prepare(second).error == ""
        assert other.unprepare(second) == ""
        other.process.stop()


def test_a_read_only_cdi_folder_is_named(cluster: LocalCluster, other: DriverNode, hand):
    folder = cluster.layout.root / "own-cdi"
    with tmpfs(folder):
        other.process.argv = [*other.process.argv, f"--cdi-dir={folder}"]
        other.process.start()
        other.wait_published(2)
        first, second = hand("first", hand_of(other, 0)), hand("second", hand_of(other, 1))
        assert other.prepare(first).error == ""
        before = left(folder)
        remount(folder, "ro")

        error = other.prepare(second).error

        assert str(folder) in error
        assert "read-write" in error
        assert "--cdi-dir" in error
        assert other.records() == [first.uid]
        assert other.prepare(first).error == ""
        assert "--cdi-dir" in other.unprepare(first)
        assert left(folder) == before

        remount(folder, "rw")
        assert other.prepare(second).error == ""
        assert other.unprepare(first) == other.unprepare(second) == ""
        assert left(folder) == other.records() == []
        other.process.stop()


# NVML ----------------------------------------------------------------------------------------

BROKEN = {
    "missing": (lambda sim: control.set_library(sim, "missing"), "install the NVIDIA driver"),
    "not loaded": (lambda sim: control.set_library(sim, "not_loaded"), "modprobe nvidia"),
    "too old": (lambda sim: control.set_driver_version(sim, "470.57.02"), "525 or newer"),
}


@pytest.mark.parametrize(("damage", "told"), BROKEN.values(), ids=list(BROKEN))
def test_without_nvml_the_plugin_says_so_and_gives_back_what_is_held(
    other: DriverNode, hand, damage, told: str
):
    other.process.start()
    other.wait_published(2)
    held, wanted = hand("held", hand_of(other, 0)), hand("wanted", hand_of(other, 1))
    assert other.prepare(held).error == ""
    other.process.stop()
    version = Store(other.sim).read().driver_version
    damage(other.sim)

    other.process.launch()
    poll(
        lambda: [reason for reason in other.ready().get("reasons", []) if told in reason],
        "the readiness to say why",
        detail=lambda: f"{other.ready()}",
    )
    assert not other.is_ready()
    poll((other.plugin_dir / "dra.sock").exists, "the socket to be served")
    poll(lambda: other.prepare(wanted).error, "an answer")
    assert told in other.prepare(wanted).error
    assert other.unprepare(held) == ""
    assert not other.records()
    assert not other.cdi_files()
    pid = other.process.pid

    control.set_library(other.sim, "ok")
    control.set_driver_version(other.sim, version)
    poll(other.is_ready, "the plugin to be Ready")
    assert other.prepare(wanted).error == ""
    assert other.unprepare(wanted) == ""
    assert other.process.pid == pid


# Settings ------------------------------------------------------------------------------------


def start_of(node: DriverNode, *extra: str) -> str:
    """Start a plugin with settings that it must refuse; what it says, in at most 30 s."""
    argv = command(node.cluster, node.account, node.sim, extra)
    done = node.cluster.exec_in_netns(argv, check=False, timeout=30)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


MISTAKES = """
taintEffect: Sometimes
orphanGraceSeconds: -1
ignoredXids: [13, many]
colour: green
gpus:
- select: {product: 5}
  modes: [gpu, gpu]
- modes: [mps]
"""
MISTAKE_PATHS = (
    "taintEffect",
    "orphanGraceSeconds",
    "ignoredXids[1]",
    "colour",
    "gpus[0].select.product",
    "gpus[0].modes[1]",
    "gpus[1].select",
    "gpus[1].modes[0]",
)


def test_every_mistake_of_a_policy_file_is_listed(other: DriverNode, tmp_path: Path):
    path = tmp_path / "policy.yaml"
    path.write_text(MISTAKES)

    text = start_of(other, "--simulate=a30:2", f"--config={path}")

    assert str(path) in text
    assert [where for where in MISTAKE_PATHS if f"{where}:" not in text] == []


def test_a_policy_file_that_is_not_there_is_named(other: DriverNode, tmp_path: Path):
    text = start_of(other, "--simulate=a30:2", f"--config={tmp_path / 'none.yaml'}")

    assert f"{tmp_path / 'none.yaml'}" in text
    assert "cannot be read" in text


def test_a_policy_that_becomes_bad_changes_nothing_and_is_reported(
    driver: DriverNode, policy: Path
):
    good, events = policy.read_text(), len(driver.events("PolicyInvalid"))
    policy.write_text(MISTAKES)

    poll(lambda: len(driver.events("PolicyInvalid")) > events, "an Event")
    note = driver.events("PolicyInvalid")[-1]["note"]
    assert all(where in note for where in MISTAKE_PATHS)
    assert len(driver.devices()) == 8
    assert driver.is_ready()

    policy.write_text(good)
    poll(lambda: "changed and is in force" in driver.process.tail(5), "the good policy to count")


@pytest.mark.usefixtures("slices_are_wanted_to_change")
def test_a_policy_that_excludes_a_held_card_leaves_its_claim_alone(
    driver: DriverNode, policy: Path, bystander: Bystander
):
    good, held = policy.read_text(), held_device(driver.kube, bystander.namespace)
    policy.write_text("gpus: [{select: {all: true}, modes: []}]\n")

    poll(lambda: [d["name"] for d in driver.devices()] == [held], "the free cards to go")
    bystander_is_there = driver.kube.get("Pod", "bystander", bystander.namespace)
    assert bystander_is_there["status"]["phase"] == "Running"

    policy.write_text(good)
    driver.wait_published(8)


SIMULATIONS = {
    "nonsense:9": "known: a30",
    "a30:0": "1 to 512",
    "a30:x": "a30:8",
    "a30:513": "1 to 512",
}


@pytest.mark.parametrize(("value", "told"), SIMULATIONS.items())
def test_simulated_hardware_that_is_unknown_is_refused(other: DriverNode, value: str, told: str):
    text = start_of(other, f"--simulate={value}")

    assert told in text
    assert repr(value) in text


def test_simulated_hardware_of_another_kind_names_the_folder(driver: DriverNode):
    text = start_of(driver, "--simulate=h200:4")

    assert str(driver.sim) in text
    assert "h100-80gb:8" in text
    assert "h200:4" in text


def test_a_path_too_long_for_a_socket_is_refused(other: DriverNode, cluster: LocalCluster):
    folder = cluster.layout.root / ("x" * 100)

    text = start_of(other, "--simulate=a30:2", f"--plugin-dir={folder}")

    assert f"{folder}/dra.sock" in text
    assert "107" in text
    assert "shorter path" in text
    assert not folder.exists()


def test_a_kubeconfig_that_is_not_there_is_named(other: DriverNode):
    text = start_of(other, "--simulate=a30:2", "--kubeconfig=/none/config")

    assert "/none/config" in text


def test_an_address_in_use_is_named(driver: DriverNode):
    extra = ["--driver-name=port.example.com", "--simulate=h100-80gb:8"]

    text = start_of(driver, *extra, f"--http-address=127.0.0.1:{driver.http_port}")

    assert f"127.0.0.1:{driver.http_port}" in text
    assert "--http-address" in text


def test_a_second_process_of_the_name_names_what_it_waits_for(
    driver: DriverNode, cluster: LocalCluster
):
    options = ["--simulate=h100-80gb:8", "--http-address=127.0.0.1:8091"]
    argv = command(cluster, driver.account, driver.sim, options)
    second = cluster.spawn("aliquot-twin", argv)
    second.launch()
    try:
        line = poll(
            lambda: [x for x in second.tail().splitlines() if "standing by" in x],
            "the second process to stand by",
        )[0]
        assert DRIVER in line
        assert str(driver.plugin_dir / "dra.lock") in line
    finally:
        second.stop()
