"""Settings that are wrong stop the start, or change nothing; either way every mistake is told."""

from pathlib import Path

import pytest

from e2e.bystander import (
    Bystander,
    bystander,
    driver,
    held_device,
    nothing_else_is_affected,
    other,
    policy,
    slices_are_wanted_to_change,
)
from e2e.cluster.local import LocalCluster
from e2e.cluster.polling import poll
from e2e.driver_node import DRIVER, DriverNode, command

__all__ = [
    "bystander",
    "driver",
    "nothing_else_is_affected",
    "other",
    "policy",
    "slices_are_wanted_to_change",
]


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
- modes: [msp]
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
