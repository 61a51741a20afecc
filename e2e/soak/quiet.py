"""Phases in which nothing should happen: an idle node, and an API server that is away."""

import re
import time

from e2e.cluster.kube import Kube
from e2e.cluster.polling import poll
from e2e.soak.scene import CARDS, Scene
from e2e.workloads import ref_of

_WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
# All that the plugin's role lets it write; nobody else writes there on an idle cluster.
_GROUPS = ("resource.k8s.io", "events.k8s.io")
_TOTAL = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_ASK_EVERY_S = 15.0


def writes(kube: Kube) -> int:
    """Write requests so far, of whomever, to what the plugin may write."""
    total = 0
    for labels, value in _TOTAL.findall(kube.raw("/metrics").text()):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if found.get("group") in _GROUPS and found.get("verb") in _WRITES:
            total += int(float(value))
    return total


def idle(scene: Scene, seconds: float) -> None:
    """With two claims prepared and nothing going on, the plugin writes nothing."""
    for name in ("idle-a", "idle-b"):
        scene.start_pod(name, "mode")
    for name in ("idle-a", "idle-b"):
        scene.kube.wait_pod(name, namespace=scene.namespace, timeout_s=120)
    claims = scene.kube.list("ResourceClaim", scene.namespace)
    poll(
        lambda: all(
            scene.kube.get("ResourceClaim", c["metadata"]["name"], scene.namespace)["status"].get(
                "devices"
            )
            for c in claims
        ),
        "the claims' status to be written",
    )
    time.sleep(2.0)  # events of the start are still on their way
    before = writes(scene.kube)
    scene.report.add("idle", "writes before, uncounted", float(before == 0))
    time.sleep(seconds)
    scene.report.add("idle", f"API writes in {seconds:g} s", writes(scene.kube) - before)
    scene.settle("idle")


def outage(scene: Scene, seconds: float) -> None:
    """The API server is away: pods run on, repeated prepares answer the same, nothing is lost."""
    names = [f"outage-{n}" for n in range(4)]
    for name in names:
        scene.start_pod(name, "one")
    for name in names:
        scene.kube.wait_pod(name, namespace=scene.namespace, timeout_s=120)
    before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in scene.pods()}
    records = scene.driver.records()
    refs = [ref_of(c) for c in scene.kube.list("ResourceClaim", scene.namespace)]
    devices = {ref.uid: scene.driver.prepare(ref).devices for ref in refs}
    other = 0
    with scene.cluster.api_down():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers = scene.driver.prepare_all(refs)
            other += sum(answers[ref.uid].devices != devices[ref.uid] for ref in refs)
            scene.report.counts["prepares without an API server"] += len(refs)
            time.sleep(min(_ASK_EVERY_S, max(0.0, end - time.monotonic())))
    poll(lambda: len(scene.driver.devices()) == CARDS, "the ResourceSlices to be there", 120)
    running = {
        p["metadata"]["name"]: p["metadata"]["uid"]
        for p in scene.pods()
        if p["status"]["phase"] == "Running"
        and all(c["restartCount"] == 0 for c in p["status"]["containerStatuses"])
    }
    scene.report.add("outage", "other answers than before", other)
    scene.report.add("outage", "pods touched", len(set(before.items()) - set(running.items())))
    changed = set(records) ^ set(scene.driver.records())
    scene.report.add("outage", "records changed", len(changed))
    scene.start_pod("outage-after", "one")
    scene.kube.wait_pod("outage-after", namespace=scene.namespace, timeout_s=240)
    scene.settle("outage")
