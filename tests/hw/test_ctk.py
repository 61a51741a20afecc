import json

import pytest

from driver.errors import HardwareError
from driver.hw.libraries import ctk_edits
from tests.polling import eventually_sync

SPEC = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"env": ["X=1"]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [
            {"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"},
            {"hostPath": "/tmp/nvidia-mps", "containerPath": "/tmp/nvidia-mps"},  # noqa: S108
        ],
        "hooks": [],
        "additionalGids": [44],
    },
}


@pytest.fixture
def program(tmp_path):
    """Write a stand-in for nvidia-ctk and return its path."""

    def write(body, mode=0o755):
        path = tmp_path / "nvidia-ctk"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(mode)
        return path

    return write


def printing(document):
    return f"cat <<'END'\n{json.dumps(document)}\nEND"


def test_a_node_without_the_toolkit_has_no_edits(tmp_path):
    assert ctk_edits(tmp_path / "nvidia-ctk") is None


def test_the_common_edits_are_kept_without_mps_and_without_newer_fields(program):
    assert ctk_edits(program(printing(SPEC))) == {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [{"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"}],
    }


def test_edits_without_mounts_are_taken_as_they_are(program):
    assert ctk_edits(program(printing({"containerEdits": {"env": ["A=1"]}}))) == {"env": ["A=1"]}


def test_the_toolkit_is_asked_for_json(program):
    script = program(f'[ "$*" = "cdi generate --format=json" ] || exit 9\n{printing(SPEC)}')
    assert ctk_edits(script) is not None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param("echo first >&2; echo no NVML >&2; exit 3", "status 3: no NVML", id="exit"),
        pytest.param("exit 1", "status 1: no message", id="silent exit"),
        pytest.param("echo not json", "printed no JSON", id="no json"),
        pytest.param("true", "printed no JSON", id="nothing"),
        pytest.param("echo '[]'", "without containerEdits", id="a list"),
        pytest.param("echo '{}'", "without containerEdits", id="no edits"),
        pytest.param(
            """echo '{"containerEdits": {"mounts": [7]}}'""", "printed the mount 7", id="odd mount"
        ),
    ],
)
def test_what_the_toolkit_does_wrong_is_said(program, body, text):
    script = program(body)
    with pytest.raises(HardwareError, match=text) as caught:
        ctk_edits(script)
    assert str(script) in str(caught.value)


def test_a_program_that_cannot_be_run_is_an_error(program):
    with pytest.raises(HardwareError, match="cannot be run"):
        ctk_edits(program("true", mode=0o644))


def test_a_toolkit_that_hangs_is_killed_with_its_children(program, tmp_path):
    script = program(f"sleep 600 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(HardwareError, match="did not end within 2 s"):
        ctk_edits(script, timeout_s=2)
    child = int((tmp_path / "child").read_text())
    eventually_sync(lambda: not _runs(child), "the child of the toolkit ended")


def _runs(pid):
    """Whether the process still executes; a zombie that nobody reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
