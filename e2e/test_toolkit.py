"""Containers of a node that has the NVIDIA Container Toolkit: the real nvidia-ctk says what they
get, and its hooks, which runc runs on the host, work in them.

The driver's libraries are the simulator's, so the loader finds nothing in them; what is looked at
is what the hooks leave: links, and the loader's configuration.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.build import binaries
from e2e.cluster.kube import Kube
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.cluster.targets import TOOLKIT
from e2e.driver_node import DriverNode, start_driver
from e2e.workloads import claim_spec, pod, seen, template

VERSION = "580.105.08"  # of the simulated driver
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
WHAT_HOOKS_LEAVE = (
    f"readlink {LIBRARIES}/libcuda.so; cat /etc/ld.so.conf.d/*; ls -l /etc/ld.so.cache; "
    f"ls {LIBRARIES}/libcuda.so.{VERSION} /usr/bin/nvidia-smi"
)


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster) -> Iterator[DriverNode]:
    node = start_driver(cluster, simulate="a30:2")
    node.wait_published()
    yield node
    node.process.stop()


@pytest.fixture
def toolkit(driver: DriverNode) -> Iterator[None]:
    """The toolkit is installed while the driver runs, and removed."""
    folder = driver.sim / "usr/bin"
    for name in TOOLKIT.programs:
        shutil.copy2(binaries(TOOLKIT) / name, folder / name)
    yield
    for name in TOOLKIT.programs:
        (folder / name).unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def nothing_is_left(driver: DriverNode, kube: Kube, namespace: str) -> Iterator[None]:
    yield
    for item in kube.list("Pod", namespace):
        kube.delete("Pod", item["metadata"]["name"], namespace, grace_s=1)
    driver.wait_clean()


def common(file: Path) -> dict[str, Any]:
    """What the runtime adds to every container of a claim."""
    found: dict[str, Any] = json.loads(file.read_text())["containerEdits"]
    return found


def run(kube: Kube, namespace: str, name: str = "user") -> None:
    kube.apply(template(name, namespace, claim_spec()))
    kube.apply(pod(name, namespace, templates={"c": name}))
    kube.wait_pod(name, namespace=namespace)


@pytest.mark.usefixtures("toolkit")
def test_hooks_of_the_toolkit_run_in_the_container(
    kube: Kube, namespace: str, driver: DriverNode
) -> None:
    run(kube, namespace)

    (file,) = driver.cdi_files()
    hooks = common(file)["hooks"]
    assert {"create-symlinks", "update-ldcache"} <= {hook["args"][1] for hook in hooks}
    assert {hook["path"] for hook in hooks} == {str(driver.sim / "usr/bin/nvidia-cdi-hook")}
    env, nodes = seen(kube, "user", namespace)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert env["NVIDIA_CTK_LIBCUDA_DIR"] == LIBRARIES
    assert {"nvidiactl", "nvidia-uvm"} <= nodes
    left = kube.exec("user", ["sh", "-c", WHAT_HOOKS_LEAVE], namespace=namespace)
    link, *others = left.splitlines()
    assert link == "libcuda.so.1"
    assert LIBRARIES in others
    assert any("/etc/ld.so.cache" in line for line in others)


def test_a_node_without_the_toolkit_mounts_the_links_themselves(
    kube: Kube, namespace: str, driver: DriverNode
) -> None:
    run(kube, namespace)

    (file,) = driver.cdi_files()
    assert "hooks" not in common(file)
    script = f"ls {LIBRARIES}/libcuda.so.1 && ! readlink {LIBRARIES}/libcuda.so.1"
    kube.exec("user", ["sh", "-c", script], namespace=namespace)


def test_a_toolkit_that_does_not_work_is_told_and_pods_start(
    kube: Kube, namespace: str, driver: DriverNode
) -> None:
    broken = driver.sim / "usr/bin/nvidia-ctk"
    broken.write_text("#!/bin/sh\necho this node is being updated >&2\nexit 1\n")
    broken.chmod(0o755)
    try:
        run(kube, namespace)
    finally:
        broken.unlink()
    said = poll(
        lambda: [line for line in driver.process.tail(200).splitlines() if "Toolkit" in line],
        "a line about the toolkit",
    )
    assert "this node is being updated" in said[-1]


@pytest.mark.usefixtures("toolkit")
def test_a_restart_gives_prepared_claims_the_hooks_of_a_toolkit_that_came_later(
    kube: Kube, namespace: str, driver: DriverNode
) -> None:
    for name in TOOLKIT.programs:
        (driver.sim / "usr/bin" / name).rename(driver.sim / "usr" / name)
    run(kube, namespace)
    (file,) = driver.cdi_files()
    assert "hooks" not in common(file)

    for name in TOOLKIT.programs:
        (driver.sim / "usr" / name).rename(driver.sim / "usr/bin" / name)
    driver.process.kill()
    driver.process.start()

    poll(lambda: "hooks" in common(file), "hooks in the CDI file")
