"""Cards are cut and joined again by a plugin of its own policy while it and the kubelet die."""

from e2e.cut_churn import CutChurn
from e2e.partitions import cutting, instances
from e2e.soak.report import bugs
from e2e.soak.scene import Scene, wait_counted

_CARDS = "h100-80gb:2"


def cut(scene: Scene, seconds: float) -> None:
    """The scene's plugin makes room for the one that cuts, and comes back."""
    scene.driver.process.stop()
    with cutting(scene.cluster, _CARDS) as driver:
        churn = CutChurn(scene.cluster, driver, scene.namespace, scene.rng)
        churn.run(seconds)
        wait_counted(lambda: not scene.pods(), "pods to go")
        wait_counted(
            lambda: not (driver.records() or driver.cdi_files() or instances(driver.sim)),
            "the node to be clean",
        )
        report = scene.report
        report.counts["pods with partitions"] += churn.started
        report.counts["kills while cards are cut"] += churn.kills
        report.add("cut", "stuck pods", len(scene.pods()))
        report.add("cut", "leaked records", len(driver.records()))
        report.add("cut", "leaked CDI files", len(driver.cdi_files()))
        report.add("cut", "leaked GPU instances", len(instances(driver.sim)))
        report.add("cut", "bugs in the plugin's log", bugs(driver.process.log))
    scene.driver.process.start()
