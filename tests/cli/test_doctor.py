"""The command as a whole, on simulated hardware."""

import asyncio
import json

import pytest

from driver.sim import control
from driver.sim.setup import create
from kubeletplugin.testing.apiserver.__main__ import kubeconfig
from kubeletplugin.testing.apiserver.server import ApiServer
from tests.cli.snapshots import snapshot
from tests.hw.toolkit import stand_in, write_program


@pytest.fixture
def node(short_root):
    """Two simulated cards, a kubelet's root and a containerd that reads our CDI folder."""
    create(short_root / "sim", "a100-40gb", 2)
    (short_root / "k" / "pods").mkdir(parents=True)
    (short_root / "containerd.toml").write_text(
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n"
        f"enable_cdi = true\ncdi_spec_dirs = ['{short_root}/cdi']\n"
    )
    return short_root


def options(node):
    return (
        *("doctor", "--node-name", "node-1", "--simulate", "a100-40gb:2"),
        *("--simulate-root", node / "sim", "--kubelet-root", node / "k"),
        *("--cdi-dir", node / "cdi", "--containerd-config", node / "containerd.toml"),
        *("--crio-config", node / "crio", "--kubeconfig", node / "kubeconfig"),
    )


@pytest.fixture
def examine(aliquot, node):
    """Run the doctor beside an API server; the exit status and the findings by check."""

    async def run(*more):
        async with ApiServer() as server:
            (node / "kubeconfig").write_text(kubeconfig(server.url))
            result = await asyncio.to_thread(lambda: aliquot(*options(node), *more, "-o", "json"))
        return result.exit_code, {each["check"]: each for each in json.loads(result.output)}

    return run


async def test_a_good_node_has_no_failure_and_is_not_changed(examine, node):
    (node / "kubeconfig").touch()
    before = snapshot(node / "k")
    status, found = await examine()
    assert status == 0
    assert [each for each in found.values() if each["level"] == "fail"] == []
    assert found["NVML"]["found"] == "driver 580.105.08, CUDA 13.0"
    assert found["cards"]["found"] == "2 cards: NVIDIA A100-SXM4-40GB"
    assert found["device nodes"]["level"] == found["driver libraries"]["level"] == "ok"
    assert snapshot(node / "k") == before
    assert not (node / "cdi").exists()


async def test_a_lost_card_fails_and_the_other_is_shown(examine, node):
    control.lose(node / "sim", 1)
    status, found = await examine()
    assert status == 1
    lost = [each for check, each in found.items() if check.startswith("card 0000:")]
    assert [each["level"] for each in lost] == ["fail"]
    assert found["cards"]["found"].startswith("1 card:")


async def test_turning_mig_mode_off_is_advised_only_where_the_policy_leaves_it_alone(
    examine, node
):
    control.set_mig_mode(node / "sim", 1, on=True)
    status, found = await examine()
    (card,) = (each for check, each in found.items() if check.startswith("card 0000:"))
    assert (status, card["level"]) == (0, "warn")
    assert "-mig 0" in card["mend"]
    policy = node / "policy.yaml"
    policy.write_text("gpus: [{select: {all: true}, modes: [gpu, mig]}]")
    _, found = await examine("--config", policy)
    (card,) = (each for check, each in found.items() if check.startswith("card 0000:"))
    assert (card["level"], card["mend"]) == ("ok", "")


@pytest.mark.parametrize(
    ("version", "library", "said"),
    [
        ("470.1.2", "ok", "470.1.2 found, 525 or newer wanted"),
        ("580.1.2", "missing", "LIBRARY_NOT_FOUND"),
        ("580.1.2", "not_loaded", "DRIVER_NOT_LOADED"),
    ],
)
async def test_a_driver_that_is_old_missing_or_not_loaded_fails(
    examine, node, version, library, said
):
    control.set_driver_version(node / "sim", version)
    control.set_library(node / "sim", library)
    status, found = await examine()
    assert status == 1
    assert found["NVML"]["level"] == "fail"
    assert said in found["NVML"]["found"]
    assert found["NVML"]["mend"]


async def test_a_missing_device_node_fails_with_the_command_that_makes_it(examine, node):
    (node / "sim" / "dev" / "nvidia-uvm").unlink()
    status, found = await examine()
    assert status == 1
    assert "nvidia-modprobe -u -c 0" in found["device nodes"]["found"]


async def test_missing_libraries_fail(examine, node):
    for path in (node / "sim").rglob("libcuda.so*"):
        path.unlink()
    status, found = await examine()
    assert status == 1
    assert "libcuda.so.580.105.08" in found["driver libraries"]["found"]


async def test_the_container_toolkit_is_told_and_warned_of_where_it_fails(examine, node):
    _, found = await examine()
    assert found["container toolkit"]["found"].startswith("none:")
    bin_ = node / "sim/usr/bin"
    stand_in(bin_, node / "sim")
    _, found = await examine()
    assert found["container toolkit"]["level"] == "ok"
    assert found["container toolkit"]["found"].startswith("1 hook")
    write_program(bin_, "echo no such mode >&2; exit 1")
    status, found = await examine()
    assert (status, found["container toolkit"]["level"]) == (0, "warn")
    assert "status 1: no such mode" in found["container toolkit"]["found"]
    _, found = await examine("--nvidia-ctk", node / "none/nvidia-ctk")
    assert "cannot be run: No such file" in found["container toolkit"]["found"]


async def test_a_policy_with_mistakes_fails(examine, node):
    policy = node / "policy.yaml"
    policy.write_text("taintEffect: Never\n")
    status, found = await examine("--config", policy)
    assert status == 1
    assert "taintEffect" in found["policy file"]["found"]


async def test_a_rule_that_leaves_a_card_no_room_is_named_with_the_card(examine, node):
    policy = node / "policy.yaml"
    first = "- select: {pciAddress: 'ffff:00:00.0'}\n  modes: []\n"
    rule = "- select: {all: true}\n  modes: [gpu, mps]\n  reserve: 64Gi\n"
    policy.write_text(f"gpus:\n{first}{rule}")
    status, found = await examine("--config", policy)
    assert status == 0
    told = found["policy file"]
    assert told["level"] == "warn"
    assert told["found"].startswith("card GPU-")
    assert "A100-SXM4-40GB" in told["found"]
    assert "gpus[1].reserve is 64Gi" in told["found"]
    assert str(policy) in told["mend"]
    policy.write_text(f"gpus:\n{first}{rule}".replace("64Gi", "1Gi"))
    _, found = await examine("--config", policy)
    assert found["policy file"]["level"] == "ok"


def test_a_policy_is_looked_at_where_there_are_no_cards(aliquot, node):
    policy = node / "policy.yaml"
    policy.write_text("wings: 2\n")
    state = node / "sim" / "sim" / "state.json"
    state.unlink()
    result = aliquot(*options(node), "--config", policy)
    assert "wings: unknown field" in result.output
    policy.write_text("gpus: [{select: {all: true}, modes: [mps], reserve: 64Gi}]\n")
    result = aliquot(*options(node), "--config", policy)
    assert f"policy file: {policy}" in result.output


def test_what_mistakes_have_in_common_is_said_once(aliquot, node):
    policy = node / "policy.yaml"
    policy.write_text("taintEffect: Never\nwings: 2\norphanGraceSeconds: -1\n")
    lines = aliquot(*options(node), "--config", policy).output.splitlines()
    (mend,) = (line for line in lines if f"mend {policy}" in line)
    assert [line for line in lines if line.endswith("a valid policy")] == [
        "        wanted  a valid policy"
    ]
    above = lines[lines.index(mend) - 4 : lines.index(mend) - 1]
    assert [line.split(":")[0] for line in above] == ["  fail  policy file"] * 3


def test_text_has_areas_findings_cures_and_a_sum(aliquot, node):
    result = aliquot(*options(node))  # there is no API server
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert "NVIDIA driver and cards" in lines
    assert "Cluster" in lines
    failed = next(i for i, line in enumerate(lines) if line.startswith("  fail  API server: "))
    assert lines[failed + 1].startswith("        wanted  ")
    assert lines[failed + 2].startswith("        mend    ")
    assert lines[-1].endswith("1 fail")


def test_simulated_hardware_that_is_not_there_is_a_finding_and_not_made(aliquot, tmp_path):
    result = aliquot(
        *("doctor", "--simulate", "l4", "--simulate-root", tmp_path / "none", "-o", "json"),
        *("--node-name", "n", "--kubelet-root", tmp_path, "--kubeconfig", tmp_path / "none"),
    )
    assert result.exit_code == 1
    found = {each["check"]: each for each in json.loads(result.output)}
    assert found["simulated hardware"]["level"] == "fail"
    assert list(tmp_path.iterdir()) == []


def test_simulated_hardware_of_other_cards_or_that_is_no_folder_is_a_finding(aliquot, node):
    found = aliquot(*options(node), "--simulate", "a100-40gb:4").output
    assert (
        f"fail  simulated hardware: {node}/sim holds a100-40gb:2, asked for a100-40gb:4" in found
    )
    assert "--simulate-root" in found
    (node / "file").touch()
    found = aliquot(*options(node), "--simulate-root", node / "file").output
    assert f"fail  simulated hardware: {node}/file cannot be used: Not a directory" in found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--simulate", "gtx"], "no profile 'gtx'"),
        (["--node-name", "Node_1"], "'Node_1' is not a DNS name"),
        (["--output", "xml"], "xml"),
    ],
)
def test_bad_input_is_refused(aliquot, arguments, said):
    result = aliquot("doctor", *arguments)
    assert result.exit_code == 2
    assert said in result.output
