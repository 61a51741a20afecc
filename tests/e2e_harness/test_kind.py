"""kind's configuration, its engine, and the retry of a creation that hangs."""

import json
from pathlib import Path

import pytest
import yaml

from e2e.cluster import layout
from e2e.cluster.errors import ClusterError, SetupError
from e2e.kind import cluster as kind
from e2e.kind import engine, rootfs

CONFIG = Path(kind.__file__).parent / "cluster.yaml"


def test_every_node_gets_the_image():
    config = kind.configuration(CONFIG.read_text(), "localhost/x:1")

    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker", "worker"]
    assert {node["image"] for node in config["nodes"]} == {"localhost/x:1"}


def test_its_networks_are_not_those_of_the_local_cluster():
    config = yaml.safe_load(CONFIG.read_text())["networking"]

    local = {layout.POD_NETWORK, layout.SERVICE_NETWORK}
    assert not local & {config["podSubnet"], config["serviceSubnet"], engine.DEFAULT_SUBNET}
    assert not engine.DEFAULT_SUBNET.startswith("10.88.")


def test_podman_has_a_configuration_of_its_own(tmp_path: Path):
    made = engine.podman(tmp_path)

    conf = (tmp_path / "containers.conf").read_text()
    assert made.environment["CONTAINERS_CONF"] == str(tmp_path / "containers.conf")
    assert made.environment["KIND_EXPERIMENTAL_PROVIDER"] == "podman"
    assert 'network_backend = "netavark"' in conf
    assert f'default_subnet = "{engine.DEFAULT_SUBNET}"' in conf
    assert f'graphroot = "{tmp_path}/store"' in (tmp_path / "storage.conf").read_text()


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALIQUOT_KIND_ENGINE", "rkt")

    with pytest.raises(SetupError, match="'rkt'"):
        engine.chosen()


def test_a_command_that_is_late_is_told_apart_from_one_that_fails():
    with pytest.raises(engine.LateError, match=r"after 0.05 s"):
        engine.run(["sleep", "60"], {}, 0.05)
    with pytest.raises(ClusterError, match="ls") as caught:
        engine.run(["ls", "/absent"], {"LC_ALL": "C"})
    assert not isinstance(caught.value, engine.LateError)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What kind is asked, by its first word; the image and the engine are there."""
    asked: list[str] = []

    def answer(self: kind.KindCluster, *arguments: str, timeout_s: float) -> str:
        asked.append(arguments[0])
        return ""

    monkeypatch.setattr(kind.KindCluster, "_kind", answer)
    monkeypatch.setenv("ALIQUOT_KIND_IMAGE", "localhost/x:1")
    return asked


def hanging(monkeypatch: pytest.MonkeyPatch, times: int, error: ClusterError) -> None:
    """The first ``times`` creations end with ``error``."""
    left = [error] * times
    before = kind.KindCluster._create

    def create(self: kind.KindCluster, config: Path) -> None:
        before(self, config)
        if left:
            raise left.pop()

    monkeypatch.setattr(kind.KindCluster, "_create", create)


def test_a_creation_that_hangs_is_told_and_tried_again(tmp_path, calls, monkeypatch, capsys):
    hanging(monkeypatch, 1, engine.LateError("joining workers"))

    kind.KindCluster(tmp_path).create()

    assert calls == ["create", "export", "delete", "create"]
    assert "attempt 1 of 3 hung: joining workers" in capsys.readouterr().err
    assert json.loads((tmp_path / "kind.json").read_text())["nodes"][0]["image"] == "localhost/x:1"


def test_creations_that_all_hang_are_a_failure(tmp_path, calls, monkeypatch):
    hanging(monkeypatch, 3, engine.LateError("joining workers"))

    with pytest.raises(ClusterError, match="3 creations hung"):
        kind.KindCluster(tmp_path).create()


def test_a_creation_that_fails_is_not_tried_again(tmp_path, calls, monkeypatch):
    hanging(monkeypatch, 1, ClusterError("no such image"))

    with pytest.raises(ClusterError, match="no such image"):
        kind.KindCluster(tmp_path).create()

    assert calls == ["create"]


def test_nothing_that_a_container_must_not_start_is_left(tmp_path: Path):
    """The units are files and links; the services that we add are wanted."""
    wants = tmp_path / "lib/systemd/system/multi-user.target.wants"
    for folder in (wants, tmp_path / "etc/systemd/system", tmp_path / "sbin"):
        folder.mkdir(parents=True)
    (wants / "getty.target").symlink_to("../getty.target")
    (tmp_path / "sbin/init").symlink_to("elsewhere")

    rootfs._units(tmp_path)

    assert list(wants.iterdir()) == []
    added = tmp_path / "etc/systemd/system/multi-user.target.wants"
    assert {path.name for path in added.iterdir()} >= {"kubelet.service", "node-cni.service"}
    assert (tmp_path / "sbin/init").readlink() == Path("/usr/lib/systemd/systemd")
