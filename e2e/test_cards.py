"""Cards that fail: tainted with the reason, named in errors, and back when the fault is over."""

from driver.sim import control
from e2e.cluster.kube import Kube
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode
from e2e.users import User
from e2e.workloads import claim, claim_spec, exactly, is_pending, pod, template


def tainted(driver: DriverNode) -> dict[str, list[str]]:
    return {
        d["name"]: [t["key"] for t in d["taints"]] for d in driver.devices() if d.get("taints")
    }


def test_a_lost_card_is_tainted_and_comes_back(
    driver: DriverNode, user: User, kube: Kube, namespace: str
):
    control.lose(driver.sim, 0)
    poll(lambda: list(tainted(driver).values()) == [[f"{DRIVER}/lost"]], "one card to be tainted")
    assert len(driver.devices()) == 8

    kube.apply(template("all", namespace, claim_spec(exactly(count=7))))
    kube.apply(pod("all", namespace, templates={"c": "all"}))
    kube.wait("Pod", "all", is_pending, namespace=namespace)

    control.restore(driver.sim, 0)
    poll(lambda: not tainted(driver), "the taint to go")
    kube.wait_pod("all", namespace=namespace)
    user.delete()


def test_an_xid_taints_until_the_recovery_is_over(driver: DriverNode):
    control.set_recovery_action(driver.sim, 3, 1)
    control.xid(driver.sim, 3, 79)
    poll(
        lambda: (
            {key for keys in tainted(driver).values() for key in keys}
            >= {f"{DRIVER}/xid", f"{DRIVER}/recovery"}
        ),
        "the card to be tainted",
    )
    assert len(tainted(driver)) == 1

    driver.process.restart()
    assert len(tainted(driver)) == 1  # a restart does not forget

    control.set_recovery_action(driver.sim, 3, 0)
    poll(lambda: not tainted(driver), "the taints to go")


def test_an_application_error_taints_nothing(driver: DriverNode):
    control.xid(driver.sim, 2, 31)
    control.xid(driver.sim, 1, 48)

    def told(xid: int) -> list[str]:  # the taint itself may be there for a moment only
        notes = [str(event["note"]) for event in driver.events("GPUUnhealthy")]
        return [note for note in notes if f"XID {xid}" in note]

    poll(lambda: told(48), "the other card to be told of")
    assert told(31) == []
    poll(lambda: not tainted(driver), "the taint to go: no recovery is asked for")


def test_a_card_lost_between_publish_and_prepare_is_named(
    driver: DriverNode, kube: Kube, namespace: str
):
    kube.apply(claim("c", namespace, claim_spec()))
    control.inject(driver.sim, "nvmlDeviceGetMinorNumber", 15, count=None)
    kube.apply(pod("p", namespace, claims={"c": "c"}))

    def told() -> bool:
        return any(
            e["reason"] == "FailedPrepareDynamicResources" and "GPU-" in e["message"]
            for e in kube.events("p", namespace)
        )

    poll(told, "the pod's event to name the card")
    assert driver.records() == []
    assert driver.cdi_files() == []

    control.clear_faults(driver.sim)
    kube.wait_pod("p", namespace=namespace, timeout_s=120)
