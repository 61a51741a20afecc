"""Names, files and command lines derived from a cluster's name."""

import json
import tomllib
from pathlib import Path

import pytest

from e2e.__main__ import pytest_arguments
from e2e.cluster import config
from e2e.cluster.errors import SetupError
from e2e.cluster.layout import ClusterSpec, Layout
from e2e.cluster.provider import chosen_name, chosen_spec

LAYOUT = Layout("a", Path("/state/a"))


@pytest.mark.parametrize("name", ["", "A", "1x", "x_y", "-x", "x-", "x" * 21, "a/b", "a b"])
def test_a_name_that_cannot_name_a_node_is_refused(name):
    with pytest.raises(SetupError, match="at most 20 of a-z"):
        ClusterSpec(name=name)


@pytest.mark.parametrize("name", ["a", "e2e", "e2e-gw0", "x" * 20])
def test_ordinary_names_are_taken(name):
    assert ClusterSpec(name=name).name == name


def test_two_clusters_share_nothing_that_is_named():
    one, two = Layout.of("one"), Layout.of("two")

    assert one.unique != two.unique
    assert one.node_name != two.node_name
    assert not set(one.folders()) & set(two.folders())


def test_the_state_folder_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("ALIQUOT_E2E_STATE", str(tmp_path))

    assert Layout.of("a").root == tmp_path / "a"


def test_sockets_stay_below_the_limit_of_unix_paths_for_the_longest_name():
    root = Path("/var/lib/aliquot-e2e") / ("x" * 20)
    registrar = Layout("x" * 20, root).kubelet_root / "plugins_registry/gpu.aliquot.dev-reg.sock"

    assert len(str(registrar)) <= 107


def test_containerd_reads_our_cdi_folder_and_keeps_everything_below_the_root():
    settings = tomllib.loads(config.containerd_config(LAYOUT, "/usr/sbin/runc", Path("/cni")))

    runtime = settings["plugins"]["io.containerd.cri.v1.runtime"]
    options = runtime["containerd"]["runtimes"]["runc"]["options"]
    assert settings["version"] == 3
    assert runtime["enable_cdi"]
    assert runtime["cdi_spec_dirs"] == ["/state/a/cdi"]
    assert runtime["restrict_oom_score_adj"]
    assert runtime["netns_mounts_under_state_dir"]
    assert options["BinaryName"] == "/usr/sbin/runc"
    for path in (settings["root"], settings["state"], options["Root"]):
        assert path.startswith("/state/a/")


def test_gates_reach_all_four_programs():
    spec = ClusterSpec("a", gates={"B": False, "A": True})

    for arguments in (
        config.apiserver_arguments(LAYOUT, spec),
        config.controller_manager_arguments(LAYOUT, spec),
        config.scheduler_arguments(LAYOUT, spec),
    ):
        assert "--feature-gates=A=true,B=false" in arguments
    assert config.kubelet_config(LAYOUT, spec)["featureGates"] == {"A": True, "B": False}


def test_without_gates_no_flag_is_given():
    arguments = config.scheduler_arguments(LAYOUT, ClusterSpec("a"))

    assert not [word for word in arguments if word.startswith("--feature-gates")]


def test_api_versions_can_be_switched():
    spec = ClusterSpec("a", runtime_config={"resource.k8s.io/v1beta1": False})

    arguments = config.apiserver_arguments(LAYOUT, spec)

    assert "--runtime-config=resource.k8s.io/v1beta1=false" in arguments


def test_the_pod_network_keeps_its_addresses_below_the_root():
    network = json.loads(config.cni_conflist(LAYOUT))

    assert network["name"] == LAYOUT.unique
    assert network["plugins"][0]["ipam"]["dataDir"] == "/state/a/ipam"


def test_the_clusters_name_comes_from_the_environment_and_differs_by_worker(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("ALIQUOT_E2E_NAME", "mine")
    assert chosen_name() == "mine"

    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    assert chosen_name() == "mine-gw1"


def test_the_folder_is_run_unless_a_test_is_named(tmp_path):
    test = tmp_path / "test_x.py"
    test.touch()

    assert pytest_arguments(["-q"], Path("/e2e")) == ["/e2e", "-q"]
    assert pytest_arguments([f"{test}::test_y", "-q"], Path("/e2e")) == [f"{test}::test_y", "-q"]


def test_the_version_is_the_newest_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.delenv("ALIQUOT_E2E_KUBERNETES", raising=False)
    assert chosen_spec().kubernetes == "1.37"
    assert chosen_spec().gates == {}
    monkeypatch.setenv("ALIQUOT_E2E_KUBERNETES", "1.34")
    assert chosen_spec().gates["DRAPartitionableDevices"] is True
    monkeypatch.setenv("ALIQUOT_E2E_KUBERNETES", "1.12")
    with pytest.raises(SetupError, match=r"1\.12: known are 1\.34, 1\.35, 1\.37"):
        chosen_spec()
