from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import ClaimError, UnknownDeviceError
from driver.model.ids import ClaimUid
from driver.model.units import Bytes
from driver.model.view import Mount
from driver.plan.cdi import (
    cdi_device_id,
    cdi_spec,
    common_edits,
    spec_file_name,
    spec_file_prefix,
)
from driver.plan.cdi_rules import validate_spec
from tests.plan.builders import DRIVER, allocation, claim, gpu, node, put, record, view, whole

UID = ClaimUid("5f0e6f0a-8f1b-4d1c-9a53-0b0f5d1f8a11")
A, B, C = gpu(0), gpu(1), gpu(2)


def spec(*requests, **changes):
    """A claim with one card for each request; the results before it belong to somebody else."""
    cards = (A, B, C)[: len(requests)]
    wanted = claim(
        UID,
        *(
            allocation(whole(card), n + 1, request=request)
            for n, (card, request) in enumerate(zip(cards, requests, strict=True))
        ),
    )
    made = cdi_spec(record(wanted, cards), view(*cards, **changes))
    validate_spec(made)
    return made


def environment(device):
    return dict(entry.split("=", 1) for entry in device["containerEdits"]["env"])


def test_a_whole_card_as_a_container_gets_it():
    control = (node("/dev/nvidiactl"), node("/dev/nvidia-uvm"))
    library = Mount("/driver/lib/libcuda.so.580", "/usr/lib/libcuda.so.580")
    assert spec("gpu", common=common_edits(control, [library])) == {
        "cdiVersion": "0.5.0",
        "kind": "gpu.aliquot.dev/claim",
        "devices": [
            {
                "name": f"{UID}-1",
                "containerEdits": {
                    "env": [
                        f"ALIQUOT_GPU_0_UUID={A.uuid}",
                        "ALIQUOT_GPU_0_TYPE=gpu",
                        "ALIQUOT_GPU_0_MEMORY_BYTES=85520809984",
                        "ALIQUOT_GPU_0_MEMORY_FRACTION=1",
                        "ALIQUOT_GPU_0_COMPUTE_PERCENT=100",
                        f"ALIQUOT_DEVICE_UUID={A.uuid}",
                        "ALIQUOT_DEVICE_TYPE=gpu",
                        "ALIQUOT_DEVICE_MEMORY_BYTES=85520809984",
                        "ALIQUOT_DEVICE_MEMORY_FRACTION=1",
                        "ALIQUOT_DEVICE_COMPUTE_PERCENT=100",
                    ],
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia0",
                            "hostPath": "/driver/dev/nvidia0",
                            "permissions": "rwm",
                        }
                    ],
                },
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [
                {
                    "path": "/dev/nvidiactl",
                    "hostPath": "/driver/dev/nvidiactl",
                    "permissions": "rwm",
                },
                {
                    "path": "/dev/nvidia-uvm",
                    "hostPath": "/driver/dev/nvidia-uvm",
                    "permissions": "rwm",
                },
            ],
            "mounts": [
                {
                    "hostPath": "/driver/lib/libcuda.so.580",
                    "containerPath": "/usr/lib/libcuda.so.580",
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                }
            ],
        },
    }


def test_devices_of_a_request_are_counted_and_sub_requests_share_its_name():
    first, second, third = (
        environment(each) for each in spec("big-ones/a", "other", "big-ones/a")["devices"]
    )
    assert (first["ALIQUOT_BIG_ONES_0_UUID"], first["ALIQUOT_DEVICE_UUID"]) == (A.uuid, A.uuid)
    assert (second["ALIQUOT_OTHER_0_UUID"], second["ALIQUOT_DEVICE_UUID"]) == (B.uuid, B.uuid)
    assert third["ALIQUOT_BIG_ONES_1_UUID"] == C.uuid
    assert not any("DEVICE" in name for name in third)


def test_admin_access_gets_the_card_and_one_card_may_stand_there_twice():
    wanted = claim(UID, allocation(whole(A)), allocation(whole(A), 1, admin=True))
    made = cdi_spec(record(wanted, [A, A]), view(A))
    validate_spec(made)
    assert [device["name"] for device in made["devices"]] == [f"{UID}-0", f"{UID}-1"]
    nodes = [device["containerEdits"]["deviceNodes"] for device in made["devices"]]
    assert nodes[0] == nodes[1] != []


def test_a_card_without_memory_of_its_own_tells_no_size():
    shared = gpu(0, memory=Bytes(0))
    made = cdi_spec(record(claim(UID, allocation(whole(shared))), [shared]), view(shared))
    assert "ALIQUOT_GPU_0_MEMORY_BYTES" not in environment(made["devices"][0])


@pytest.mark.parametrize("changes", [{"nodes": {}}, {"nodes": {A.uuid: ()}}, {"gpus": {}}])
def test_a_card_without_device_node_is_refused(changes):
    with pytest.raises(UnknownDeviceError, match=f"card {A.uuid} of device gpu-00000000 has no d"):
        spec("gpu", **changes)


def test_edits_of_the_toolkit_never_undo_ours_and_stand_in_for_files():
    toolkit = {
        "env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib"],
        "deviceNodes": [
            {"path": "/dev/nvidiactl", "hostPath": "/x", "type": "c", "major": 195, "minor": 255},
            {"path": "/dev/nvidia-uvm", "hostPath": "/y", "type": "c", "major": 510, "minor": 0},
            {"path": "/dev/nvidia-caps/cap1", "type": "c", "major": 236, "minor": 1},
        ],
        "mounts": [
            {"hostPath": "/usr/lib/a", "containerPath": "/usr/lib/a", "options": ["ro"]},
            {"hostPath": "/usr/lib/b", "containerPath": "/usr/lib/b"},
            {"hostPath": "/run/nvidia-mps", "containerPath": "/run/nvidia-mps"},
            {"hostPath": "/usr/bin/nvidia-cuda-mps-control", "containerPath": "/usr/bin/n"},
        ],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
        "additionalGids": [44],
    }
    own = Mount("/driver/a", "/usr/lib/a"), Mount("/driver/c", "/usr/lib/c")
    edits = common_edits([node("/dev/nvidiactl")], own, toolkit)
    assert spec("gpu", common=edits)["containerEdits"] is edits
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib"]
    assert edits["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "hostPath": "/driver/dev/nvidiactl", "permissions": "rwm"},
        {"path": "/dev/nvidia-uvm", "hostPath": "/y"},
        {"path": "/dev/nvidia-caps/cap1", "type": "c", "major": 236, "minor": 1},
    ]
    assert [(mount["hostPath"], mount["containerPath"]) for mount in edits["mounts"]] == [
        ("/usr/lib/a", "/usr/lib/a"),
        ("/usr/lib/b", "/usr/lib/b"),
        ("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/n"),
    ]
    assert edits["hooks"] == toolkit["hooks"]
    assert edits.keys() == {"env", "deviceNodes", "mounts", "hooks"}


LABELS = st.from_regex("[a-z0-9]([-a-z0-9]{0,4}[a-z0-9])?", fullmatch=True)


@given(st.lists(LABELS | st.tuples(LABELS, LABELS).map("/".join), min_size=1, max_size=5))
def test_any_request_names_make_a_valid_spec_in_which_no_variable_means_two_things(requests):
    cards = [gpu(n) for n in range(len(requests))]
    made = claim(
        UID,
        *(
            allocation(whole(card), n, request=request)
            for n, (card, request) in enumerate(zip(cards, requests, strict=True))
        ),
    )
    found = cdi_spec(record(made, cards), view(*cards))
    validate_spec(found)
    told = [name for device in found["devices"] for name in environment(device)]
    firsts = [name for name in told if name.startswith("ALIQUOT_DEVICE_")]
    own = [name for name in told if name not in firsts]
    assert len(own) == len(set(own)) == 5 * len(requests)
    assert len(firsts) == 5 * len({request.partition("/")[0] for request in requests})


def test_names_of_files_and_devices():
    assert spec_file_name(DRIVER, UID) == f"gpu.aliquot.dev-claim_{UID}.json"
    assert spec_file_name(DRIVER, UID).startswith(spec_file_prefix(DRIVER))
    assert cdi_device_id(DRIVER, UID, 1) == f"gpu.aliquot.dev/claim={UID}-1"


GOOD: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "vendor.com/class",
    "devices": [
        {
            "name": "0a",
            "containerEdits": {
                "env": ["A=b"],
                "deviceNodes": [{"path": "/dev/a", "type": "c", "permissions": "none"}],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}],
                "hooks": [{"hookName": "poststop", "path": "/h", "env": ["C="], "timeout": 1}],
            },
        },
        {"name": "b", "containerEdits": {"env": ["A=b"]}},
    ],
    "containerEdits": {},
}
DEVICE = ("devices", 0)
EDITS = (*DEVICE, "containerEdits")


def test_a_good_spec_passes():
    validate_spec(GOOD)
    validate_spec(GOOD | {"cdiVersion": "v1.0.0"})
    validate_spec({key: value for key, value in GOOD.items() if key != "containerEdits"})


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("colour",), "red", "spec.colour: unknown field"),
        (("kind",), 7, "spec.kind: got 7, want str"),
        (("devices",), {}, "spec.devices: got {}, want list"),
        (("cdiVersion",), "9.9.9", "cdiVersion: got '9.9.9', want one of 0.3.0"),
        (("cdiVersion",), "0.2.0", "cdiVersion: got '0.2.0'"),
        (("cdiVersion",), "0.4.0", "0.4.0 is too low for a device name that starts with a digit"),
        (("cdiVersion",), "0.3.0", "0.3.0 is too low for type of mounts, which needs 0.4.0"),
        (("annotations",), {}, "0.5.0 is too low for annotations, which needs 0.6.0"),
        (("kind",), "class", "kind: got 'class', want vendor/class"),
        (("kind",), "1/class", "kind: got '1/class'"),
        (("kind",), "vendor/a.b", "0.5.0 is too low for a dot in the class, which needs 0.6.0"),
        (("kind",), f"vendor/{'c' * 64}", "the class has 64 characters, want at most 63"),
        (("devices",), [], "devices: none, want at least one"),
        ((*DEVICE, "name"), "b", "devices: b stands there 2 times"),
        ((*DEVICE, "name"), "a b", r"devices\[0\].name: got 'a b'"),
        ((*DEVICE, "name"), "", r"devices\[0\].name: got ''"),
        (DEVICE, "x", r"devices\[0\]: got 'x', want an object"),
        ((*DEVICE, "colour"), "x", r"devices\[0\].colour: unknown field"),
        (EDITS, {}, r"devices\[0\].containerEdits: empty"),
        (EDITS, {"env": []}, r"devices\[0\].containerEdits: empty"),
        (EDITS, {"envs": ["A=b"]}, r"containerEdits.envs: unknown field"),
        ((*EDITS, "env", 0), "A", r"env\[0\]: got 'A', want NAME=value"),
        ((*EDITS, "env", 0), "=b", r"env\[0\]: got '=b', want NAME=value"),
        ((*EDITS, "env", 0), 7, r"env\[0\]: got 7, want NAME=value"),
        ((*EDITS, "env", 0), "A=b\nC=d", r"env\[0\]: a line break or NUL in 'A=b\\nC=d'"),
        ((*EDITS, "deviceNodes", 0), 7, r"deviceNodes\[0\]: got 7, want an object"),
        ((*EDITS, "deviceNodes", 0, "path"), "", r"deviceNodes\[0\].path: missing"),
        ((*EDITS, "deviceNodes", 0, "type"), "x", r"deviceNodes\[0\].type: got 'x', want b, c"),
        ((*EDITS, "deviceNodes", 0, "permissions"), "rx", r"permissions: got 'rx', want letters"),
        ((*EDITS, "deviceNodes", 0, "major"), True, r"major: got true, want int"),
        ((*EDITS, "mounts", 0, "hostPath"), "", r"mounts\[0\].hostPath: missing"),
        ((*EDITS, "mounts", 0, "containerPath"), "", r"mounts\[0\].containerPath: missing"),
        ((*EDITS, "hooks", 0, "hookName"), "before", r"hooks\[0\].hookName: got 'before'"),
        ((*EDITS, "hooks", 0, "path"), "h", r"hooks\[0\].path: got 'h', want an absolute path"),
        ((*EDITS, "hooks", 0, "timeout"), 0, r"hooks\[0\].timeout: got 0, want 1 or more"),
        ((*EDITS, "hooks", 0, "env"), ["C"], r"hooks\[0\].env\[0\]: got 'C', want NAME=value"),
        ((*EDITS, "additionalGids"), [44], "too low for additionalGids, which needs 0.7.0"),
        ((*EDITS, "intelRdt"), {"a": 1}, "too low for intelRdt, which needs 0.7.0"),
        ((*EDITS, "netDevices"), [{}], "too low for netDevices, which needs 1.1.0"),
        (("containerEdits",), {"env": ["A"]}, r"containerEdits.env\[0\]: got 'A'"),
        (("containerEdits",), {"env": "A=b"}, "containerEdits.env: got 'A=b', want list"),
    ],
)
def test_each_rule_of_the_loader_is_checked(path, value, text):
    with pytest.raises(ClaimError, match=text):
        validate_spec(put(GOOD, path, value))


def test_a_host_path_needs_its_version():
    low = put(GOOD | {"cdiVersion": "0.4.0"}, (*DEVICE, "name"), "a")
    validate_spec(low)
    low = put(low, (*EDITS, "deviceNodes", 0, "hostPath"), "/dev/b")
    with pytest.raises(ClaimError, match="too low for hostPath of deviceNodes"):
        validate_spec(low)


def test_a_missing_field_of_the_spec_is_named():
    for key, text in (("cdiVersion", "cdiVersion: got ''"), ("kind", "kind: got ''")):
        with pytest.raises(ClaimError, match=text):
            validate_spec({name: value for name, value in GOOD.items() if name != key})
