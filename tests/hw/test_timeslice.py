"""Time slices through a stand-in of nvidia-smi that works on the simulator's state."""

import pytest

from driver.errors import HardwareError, NotSupportedError
from driver.hw.timeslice import TimeSlices
from driver.model.steps import SetTimeSlice, TimeSliceInterval
from driver.sim import control
from driver.sim.store import Store

LONG, DEFAULT = TimeSliceInterval.LONG, TimeSliceInterval.DEFAULT


@pytest.fixture
def two(node):
    return node("h100-80gb", 2)


@pytest.fixture
def step(two):
    return SetTimeSlice(two.uuids()[1], LONG)


def set_now(node):
    world = Store(node.root).read()
    return [world.gpu(index).time_slice for index in range(2)]


def program(node, text):
    """Another nvidia-smi in the driver root."""
    path = node.root / "usr/bin/nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_time_slice_is_set_read_back_and_restored(two, step):
    cards = two.cards
    assert not cards.present(step)
    cards.do(step)
    cards.do(step)
    assert cards.present(step)
    assert set_now(two) == [0, 3]
    cards.undo(step)
    cards.undo(step)
    assert set_now(two) == [0, 0]
    assert not cards.present(step)


def test_a_reboot_loses_it(two, step):
    two.cards.do(step)
    control.reboot(two.root)
    assert not two.cards.present(step)


def test_a_refusal_with_exit_status_0_is_noticed(two, step):
    control.set_smi(two.root, "silent")
    with pytest.raises(HardwareError) as caught:
        two.cards.do(step)
    text = str(caught.value)
    assert f"nvidia-smi compute-policy -i {step.gpu} --set-timeslice 3" in text
    assert "DEFAULT is set and LONG was wanted" in text
    assert "Insufficient Permissions" in text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("missing", "there is no nvidia-smi below driver root"),
        ("fails", "ended with status 9: NVIDIA-SMI has failed"),
        ("old", "ended with status 6: Invalid command"),
        ("unsupported", "Not Supported for this device"),
    ],
)
@pytest.mark.parametrize("action", ["do", "undo", "present"])
def test_a_program_or_card_without_time_slices_is_said(two, step, state, words, action):
    control.set_smi(two.root, state)
    with pytest.raises(NotSupportedError, match=words):
        getattr(two.cards, action)(step)


def test_a_problem_is_told_before_anything_is_set(two, step):
    slices = TimeSlices(two.root)
    assert slices.problem(step.gpu) == ""
    control.set_smi(two.root, "old")
    assert "Invalid command" in slices.problem(step.gpu)
    assert set_now(two) == [0, 0]


def test_a_lost_card_is_an_error(two, step):
    control.lose(two.root, 1)
    with pytest.raises(HardwareError, match="No devices were found"):
        two.cards.do(step)


@pytest.mark.parametrize(
    "output",
    [
        "GPU  0: Timeslice: Medium",
        "| GPU   Name        Value  |\n|  0    timeslice   MEDIUM |",
        "GPU 0: Time-slice = medium",
    ],
)
def test_what_is_set_is_read_from_any_known_form(two, output):
    program(two, f"cat <<'END'\n{output}\nEND")
    assert TimeSlices(two.root).read(two.uuids()[0]) is TimeSliceInterval.MEDIUM


def test_an_answer_of_another_form_is_not_guessed_at(two):
    program(two, "echo 'GPU 0: fine'")
    with pytest.raises(NotSupportedError, match="printed no time slice, but: GPU 0: fine"):
        TimeSlices(two.root).read(two.uuids()[0])


def test_a_program_that_hangs_is_killed(two):
    program(two, "sleep 600")
    with pytest.raises(HardwareError, match=r"did not end within 0\.2 s; killed"):
        TimeSlices(two.root, timeout_s=0.2).read(two.uuids()[0])


def test_a_program_that_cannot_run_is_said(two):
    path = two.root / "usr/bin/nvidia-smi"
    path.write_text("not a program")
    with pytest.raises(HardwareError, match="cannot be run"):
        TimeSlices(two.root).read(two.uuids()[0])


def test_it_is_run_with_the_nvml_of_its_driver_root(two):
    library = two.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    program(two, 'echo "Timeslice: Default" ; echo "[$LD_PRELOAD]"')
    slices = TimeSlices(two.root)
    assert "LD_PRELOAD" not in slices._environment()  # a text file: nothing to load
    library.resolve().write_bytes(b"\x7fELF and more")
    assert slices._environment()["LD_PRELOAD"] == str(library.resolve())
    library.resolve().chmod(0)
    assert slices.read(two.uuids()[0]) is DEFAULT
