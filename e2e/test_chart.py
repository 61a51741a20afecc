"""The chart, run: what it installs serves claims, and keeps doing so while it is changed."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import build
from e2e.cluster.errors import ClusterError
from e2e.cluster.kube import Object
from e2e.cluster.polling import poll
from e2e.cluster.targets import CDI_CHECK
from e2e.driver_node import DRIVER
from e2e.partitions import part
from e2e.sites.helm import NAMESPACE
from e2e.sites.installed import Installed, installed
from e2e.sites.pods import User, start
from e2e.sites.site import Site
from e2e.workloads import exactly

MODES = {
    "gpu": exactly(),
    "mig": part("1g.10gb"),
    "mps": exactly(deviceClassName="gpu-share", capacity={"requests": {"memory": "10Gi"}}),
    "timeslice": exactly(deviceClassName="gpu-timeslice"),
}
"""A request of each mode that the driver has, by the type of its devices."""


@pytest.fixture(scope="module")
def release(site: Site) -> Iterator[Installed]:
    with installed(site) as running:
        yield running


def test_the_plugin_runs_on_every_worker_with_no_more_than_it_needs(release: Installed):
    pods = release.pods()

    assert {pod["spec"]["nodeName"] for pod in pods} >= set(release.site.workers())
    for pod in pods:
        name = pod["metadata"]["name"]
        status = release.kube.exec(name, ["cat", "/proc/1/status"], namespace=NAMESPACE)
        told = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(told["CapEff"], 16) == 1 << 27, "CAP_MKNOD alone (capability.h: 27)"
        assert told["NoNewPrivs"] == "1"


def in_plugin(release: Installed, script: str) -> Any:
    """The JSON that a Python script prints in a plugin's container."""
    name = release.pods()[0]["metadata"]["name"]
    return json.loads(release.kube.exec(name, ["python3", "-c", script], namespace=NAMESPACE))


def test_the_image_lists_what_is_in_it(release: Installed):
    names = in_plugin(
        release,
        "import json; bom = json.load(open('/opt/aliquot/sbom.cdx.json'));"
        "print(json.dumps([part['name'] for part in bom['components']]))",
    )

    assert {"grpcio", "kubernetes", "nvidia-ml-py", "protobuf"} <= set(names)
    assert not {"pip", "hatchling", "pytest"} & set(names)


def test_every_module_of_the_image_is_compiled(release: Installed):
    """The root is read-only: what is not compiled is compiled at each start."""
    without = in_plugin(
        release,
        "import json, importlib.util, pathlib, sysconfig;"
        "cached = lambda path: pathlib.Path(importlib.util.cache_from_source(str(path)));"
        "found = pathlib.Path(sysconfig.get_path('purelib')).rglob('*.py');"
        "print(json.dumps([str(path) for path in found if not cached(path).exists()]))",
    )

    assert without == []


def test_helm_test_runs_a_claim(release: Installed):
    said = release.helm.test()

    assert "ALIQUOT_DEVICE_UUID=GPU-" in said
    assert "/dev/nvidiactl" in said


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_of_each_mode(release: Installed, room: str, mode: str):
    user = start(release.site, room, "one", MODES[mode])

    assert user.env()["ALIQUOT_DEVICE_TYPE"] == mode
    assert user.card().startswith("MIG-" if mode == "mig" else "GPU-")
    user.end()


@pytest.mark.needs("look at nodes")
def test_the_specs_are_what_the_runtimes_library_takes(
    release: Installed, room: str, tmp_path: Path
):
    users = [start(release.site, room, mode, request) for mode, request in MODES.items()]
    for user in users:
        release.copy_cdi(user.node(), tmp_path)

    checked = subprocess.run(
        [build.binaries(CDI_CHECK) / "cdi-check", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (checked.returncode, checked.stderr) == (0, "")
    found = checked.stdout.split()
    assert len(found) == len(users)
    assert all(name.startswith(f"{DRIVER}/claim=") for name in found)


# Changes while pods run -----------------------------------------------------------------------


@pytest.fixture
def users(release: Installed, room: str) -> list[User]:
    """A running pod of each mode."""
    return [start(release.site, room, f"user-{mode}", MODES[mode]) for mode in MODES]


def rolled(release: Installed, before: set[str]) -> None:
    """No pod of before is left, and all that are there now are Ready."""
    assert not release.uids() & before

    def ready(pod: Object) -> bool:
        found = pod["status"].get("containerStatuses", [])
        return bool(found) and all(status["ready"] for status in found)

    poll(lambda: all(ready(pod) for pod in release.pods()), "all plugins to be ready")


def test_an_upgrade_with_pods_running_harms_no_claim(
    release: Installed, room: str, users: list[User]
):
    before, written = release.uids(), [item["metadata"]["uid"] for item in release.slices()]
    supervisors, daemons = release.uids("mps"), served(release)
    assert daemons, "a share has a control daemon"

    notes = release.upgrade({"plugin": {"logLevel": "debug", "podAnnotations": {"roll": "1"}}})
    late = start(release.site, room, "late", MODES["mig"])

    assert "A first claim" in notes
    rolled(release, before)
    for user in (*users, late):
        user.unharmed()
    assert (release.uids("mps"), served(release)) == (supervisors, daemons)
    assert [item["metadata"]["uid"] for item in release.slices()] == written
    for user in (*users, late):
        user.end()


def served(release: Installed) -> dict[str, dict[str, int]]:
    """Every control daemon's pid, by node and card."""
    return {node: found for node in release.site.workers() if (found := release.daemons(node))}


def test_control_daemons_outlive_their_supervisors_pod(release: Installed, users: list[User]):
    """As when a new version of the supervisor is taken up: its pods are deleted by hand."""
    before, daemons = release.uids("mps"), served(release)

    for pod in release.pods("mps"):
        release.kube.delete("Pod", pod["metadata"]["name"], NAMESPACE)

    poll(lambda: len(release.uids("mps") - before) == len(before), "new supervisors", 120)
    poll(lambda: answers(release), "the supervisors to answer", 60)
    assert served(release) == daemons
    for user in users:
        user.unharmed()
        user.end()


def answers(release: Installed) -> bool:
    try:
        served(release)
    except ClusterError:
        return False
    return True


def test_claims_that_come_during_an_upgrade_are_served(
    release: Installed, room: str, users: list[User]
):
    """The pods are made while the old plugin goes and the new one comes."""
    before = release.uids()
    values = {"plugin": {"podAnnotations": {"roll": "2"}}}

    release.helm.upgrade({**release.values, **_merged(release, values)}, "--wait=false")
    came = [start(release.site, room, f"came-{n}", MODES["mig"]) for n in range(3)]

    poll(lambda: not release.uids() & before, "the old plugins to be gone", timeout_s=120)
    rolled(release, before)
    for user in (*users, *came):
        user.unharmed()
        user.end()


def _merged(release: Installed, change: Object) -> Object:
    return {key: {**release.values.get(key, {}), **value} for key, value in change.items()}


def test_a_rollback_harms_no_claim(release: Installed, users: list[User]):
    release.upgrade({"plugin": {"logLevel": "warning"}})
    before = release.uids()

    release.helm.rollback()

    rolled(release, before)
    arguments = release.pods()[0]["spec"]["containers"][0]["args"]
    assert "--log-level=warning" not in arguments
    for user in users:
        user.unharmed()
        user.end()


def test_a_changed_policy_is_taken_up_without_a_restart(release: Installed):
    release.upgrade()  # back to the values that all tests begin with
    before, node = release.uids(), release.site.workers()[0]

    release.upgrade({"policy": {"gpus": [{"select": {"all": True}, "modes": ["gpu"]}]}})

    def types() -> set[str]:
        return {each["attributes"]["type"]["string"] for each in release.devices(node)}

    release.hurry()
    poll(lambda: types() == {"gpu"}, "everything but whole cards to be withdrawn", timeout_s=180)
    assert release.uids() == before
    release.upgrade()
    release.hurry()
    poll(lambda: types() == set(MODES), "everything to be back", timeout_s=180)


def test_a_plugin_that_is_stopped_ends_by_itself(release: Installed):
    """SIGTERM as PID 1: a finalizer keeps the pod, so that its end can be read."""
    pod = release.pods()[0]
    name, kube = pod["metadata"]["name"], release.kube
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
    keep = json.dumps({"metadata": {"finalizers": ["aliquot.dev/test"]}})
    kube.kubectl("-n", NAMESPACE, "patch", "pod", name, "--type=merge", "-p", keep)

    def ended() -> Object | None:
        (status,) = kube.request("GET", path)["status"]["containerStatuses"]
        found: Object | None = status["state"].get("terminated")
        return found

    kube.delete("Pod", name, NAMESPACE)
    end = poll(ended, "the plugin to end", timeout_s=90)
    gone = json.dumps({"metadata": {"finalizers": None}})
    kube.kubectl("-n", NAMESPACE, "patch", "pod", name, "--type=merge", "-p", gone)

    assert end["exitCode"] == 0, end
    poll(release.pods, "the next plugin")
    rolled(release, {pod["metadata"]["uid"]})


@pytest.mark.needs("look at nodes")
def test_after_an_uninstall_pods_go_on_and_an_install_takes_over_again(
    release: Installed, users: list[User]
):
    cards = {user.name: user.card() for user in users}
    release.helm.uninstall()

    for user in users:
        user.unharmed()
        node = user.node()
        assert release.records(node), "the journal says what is held"
        assert release.cdi_files(node), "a container that restarts needs its spec"

    release.upgrade()
    release.wait_published()
    for user in users:
        user.unharmed()
        assert user.card() == cards[user.name]
        node = user.node()
        user.end()
    release.wait_clean(node)
