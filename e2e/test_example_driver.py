"""The driver of the documentation, on a real node: all that it needs is ``kubeletplugin``."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.kube import Kube, Object
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.cluster.processes import inside_environment, tail
from e2e.workloads import SLEEP, claim_spec, pod, template

DRIVER = "lamp.example.com"
SOURCE = Path(__file__).parent.parent / "docs" / "example" / "lamp_driver.py"
OURS = {"api", "kubeletplugin", "driver", "controller", "cli", "e2e", "bench", "tests"}
MOST_LINES = 80

CLASS: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "lamp"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def lamps(kube: Kube) -> list[str]:
    """Names of the published lamps."""
    slices = [s for s in kube.list("ResourceSlice") if s["spec"]["driver"] == DRIVER]
    return [d["name"] for s in slices for d in s["spec"].get("devices", [])]


@dataclass
class LampDriver:
    """The program as its documentation starts it."""

    cluster: LocalCluster
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            "NODE_NAME": self.cluster.node_name,
            "CDI_DIR": str(self.cluster.cdi_dir),
            "KUBELET_ROOT": str(self.cluster.kubelet_root),
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "PYTHONPATH": str(SOURCE.parent.parent.parent),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.cluster.netns.argv([sys.executable, str(SOURCE)]),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=inside_environment(environment),
            )

    def running(self) -> bool:
        assert self.process is not None
        return self.process.poll() is None

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture(scope="module")
def lamp_driver(cluster: LocalCluster) -> Iterator[LampDriver]:
    cluster.kube.apply(CLASS)
    driver = LampDriver(cluster, cluster.layout.logs / "lamps.log")
    driver.start()
    poll(lambda: len(lamps(cluster.kube)) == 8, "eight lamps to be published")
    yield driver
    driver.stop()


def two_lamps(name: str) -> Object:
    exactly = {"deviceClassName": "lamp", "count": 2}
    return {"name": name, "exactly": exactly}


def files(cluster: LocalCluster) -> list[Path]:
    return sorted(cluster.cdi_dir.glob(f"*{DRIVER}*"))


def test_the_source_is_short_and_uses_only_the_library():
    text = SOURCE.read_text()
    modules = {
        name
        for node in ast.walk(ast.parse(text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert len(text.splitlines()) <= MOST_LINES
    assert {name.partition(".")[0] for name in modules} & OURS == {"kubeletplugin"}


def run_user(cluster: LocalCluster, namespace: str, name: str) -> list[str]:
    """A pod with two lamps runs and says what it sees; then it is deleted."""
    kube = cluster.kube
    script = f"env | grep ^LAMP_ | sort; echo looked; {SLEEP}"
    kube.apply(template(name, namespace, claim_spec(two_lamps("lamps"))))
    kube.apply(pod(name, namespace, script, templates={"c": name}))
    kube.wait_pod(name, namespace=namespace)
    seen = poll(
        lambda: (found := kube.logs(name, namespace=namespace)).endswith("looked\n") and found,
        "the pod to look around",
    )
    assert len(files(cluster)) == 1
    return str(seen).splitlines()[:-1]


def connections(cluster: LocalCluster) -> int:
    """How often the kubelet says that it has connected to the driver.

    A pod that comes sooner is tried again only with the kubelet's next full sync.
    """
    lines = cluster.kubelet.tail(1000).splitlines()
    return sum(
        '"Connection changed"' in line and f'"{DRIVER}"' in line and "connected=true" in line
        for line in lines
    )


def test_a_pod_sees_the_lamps_of_its_claim(
    lamp_driver: LampDriver, cluster: LocalCluster, namespace: str
):
    seen = run_user(cluster, namespace, "user")

    allocated = [
        result["device"]
        for item in cluster.kube.list("ResourceClaim", namespace)
        for result in item["status"]["allocation"]["devices"]["results"]
    ]
    assert seen == [f"LAMP_{n}={name}" for n, name in enumerate(allocated)]
    assert len(set(allocated)) == 2

    cluster.kube.delete("Pod", "user", namespace, grace_s=0)
    poll(lambda: not files(cluster), "the CDI file to go")
    assert lamp_driver.running()


def test_sigterm_ends_it_cleanly_and_a_new_start_goes_on(
    lamp_driver: LampDriver, cluster: LocalCluster, namespace: str
):
    before = [s["metadata"]["resourceVersion"] for s in cluster.kube.list("ResourceSlice")]

    assert lamp_driver.stop() == 0

    assert not list(cluster.kubelet_root.glob(f"plugins*/**/*{DRIVER}*.sock"))
    assert "Traceback" not in tail(lamp_driver.log, 100)
    connected = connections(cluster)
    lamp_driver.start()
    poll(lambda: connections(cluster) > connected, "the kubelet to know the driver again")
    assert len(run_user(cluster, namespace, "again")) == 2
    after = [s["metadata"]["resourceVersion"] for s in cluster.kube.list("ResourceSlice")]
    assert after == before
    cluster.kube.delete("Pod", "again", namespace, grace_s=0)
    poll(lambda: not files(cluster), "the CDI file to go")
