"""Claims that are wrong are refused with a text that names the object and what to change."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.bystander import (
    API,
    Bystander,
    bystander,
    driver,
    free,
    gpu_config,
    hand,
    held_device,
    nothing_else_is_affected,
    policy,
    result,
)
from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode
from e2e.workloads import claim, claim_spec, opaque, pod, ref_of

__all__ = ["bystander", "driver", "free", "hand", "nothing_else_is_affected", "policy"]

PATH = "status.allocation.devices.config[0].opaque.parameters"

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
