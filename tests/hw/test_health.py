import threading

import pynvml
import pytest

from driver.errors import HardwareError, NvmlMissingError
from driver.hw.health import HealthSource
from driver.model.readings import CardReading, XidEvent
from driver.sim import control

SOME_CARD = XidEvent(gpu=None, xid=None)


@pytest.fixture
def watched(node):
    """A node and a HealthSource of all its cards, given back at the end."""
    made = []

    def make(profile="h100-80gb", count=2, **more):
        simulated = node(profile, count, **more)
        source = HealthSource(simulated.nvml, simulated.uuids())
        made.append(source)
        return simulated, source

    yield make
    for source in made:
        source.close()


# Polling


def test_a_sound_card_reads_clean(watched):
    h100, health = watched()
    assert health.poll() == tuple(
        CardReading(
            gpu=uuid,
            lost=False,
            recovery_action=0,
            ecc_uncorrected=0,
            remap_pending=False,
            remap_failed=False,
            retired_pending=None,
            problem=None,
        )
        for uuid in h100.uuids()
    )


def test_what_an_older_card_and_driver_do_not_have_is_none(watched):
    _, health = watched("t4", 1, driver_version="535.161.08")
    (reading,) = health.poll()
    assert (reading.remap_pending, reading.remap_failed) == (None, None)
    assert reading.retired_pending is False
    assert reading.recovery_action is None
    assert reading.problem is None


def test_signals_of_trouble_are_read(watched):
    h100, health = watched()
    control.set_recovery_action(h100.root, 1, 2)
    control.set_ecc_errors(h100.root, 1, uncorrected=3)
    control.set_remapped_rows(h100.root, 1, pending=True, failure=True)
    sound, ill = health.poll()
    assert sound.recovery_action == 0
    assert (ill.recovery_action, ill.ecc_uncorrected) == (2, 3)
    assert (ill.remap_pending, ill.remap_failed) == (True, True)
    assert not ill.lost


def test_a_lost_card_is_a_reading_and_hides_no_other(watched):
    h100, health = watched()
    first, second = h100.uuids()
    control.lose(h100.root, 0)
    lost, sound = health.poll()
    assert (lost.gpu, lost.lost) == (first, True)
    assert "GPU_IS_LOST" in lost.problem
    assert (sound.gpu, sound.lost) == (second, False)
    control.restore(h100.root, 0)
    assert [reading.lost for reading in health.poll()] == [False, False]


def test_a_card_that_must_be_reset_is_lost(watched):
    h100, health = watched()
    h100.inject("nvmlDeviceGetRemappedRows", pynvml.NVML_ERROR_RESET_REQUIRED, gpu=0)
    assert [reading.lost for reading in health.poll()] == [True, False]


def test_a_card_that_nvml_no_longer_lists_is_lost(watched):
    _, health = watched()
    health.watch(["GPU-00000000-0000-0000-0000-000000000000"])
    (reading,) = health.poll()
    assert reading.lost
    assert "NOT_FOUND" in reading.problem


def test_a_call_that_is_refused_is_a_problem_and_no_loss(watched):
    h100, health = watched()
    h100.inject("nvmlDeviceGetTotalEccErrors", pynvml.NVML_ERROR_UNKNOWN, gpu=0)
    ill, sound = health.poll()
    assert not ill.lost
    assert ill.ecc_uncorrected is None
    assert ill.problem == "nvmlDeviceGetTotalEccErrors: UNKNOWN (999)"
    assert ill.recovery_action == 0
    assert sound.problem is None


def test_a_handle_that_is_refused_is_a_problem_and_no_loss(watched):
    h100, health = watched()
    h100.nvml.drop_handles()
    h100.inject("nvmlDeviceGetHandleByUUID", pynvml.NVML_ERROR_UNKNOWN)
    reading = health.poll()[0]
    assert not reading.lost
    assert "UNKNOWN (999)" in reading.problem


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetHandleByUUID"])
def test_a_library_that_is_gone_is_no_reading(watched, call):
    h100, health = watched()
    h100.nvml.drop_handles()
    h100.inject(call, pynvml.NVML_ERROR_UNINITIALIZED)
    with pytest.raises(NvmlMissingError):
        health.poll()


# Events


def test_waiting_in_vain_is_no_error(watched):
    _, health = watched()
    assert health.wait(0.01) == ()
    assert health.unmonitored == ()


def test_an_xid_names_its_card_and_what_it_concerns(watched):
    h100, health = watched()
    first, second = h100.uuids()
    health.wait(0)
    control.xid(h100.root, 1, 79)
    control.xid(h100.root, 0, 43, gpu_instance=2, compute_instance=0)
    assert health.wait(1) == (XidEvent(second, 79), XidEvent(first, 43, 2, 0))
    assert health.wait(0) == ()


def test_waiting_ends_when_the_event_comes(watched):
    h100, health = watched()
    health.wait(0)
    sender = threading.Timer(0.05, control.xid, (h100.root, 0, 48))
    sender.start()
    found: tuple[XidEvent, ...] = ()
    for _ in range(30):
        found = found or health.wait(1)
    sender.join()
    assert found == (XidEvent(h100.uuids()[0], 48),)


def test_a_storm_comes_in_portions_and_whole(watched, monkeypatch):
    monkeypatch.setattr("driver.hw.health._DRAIN_BOUND", 100)
    h100, health = watched(count=1)
    health.wait(0)
    for number in range(150):
        control.xid(h100.root, 0, number)
    first = health.wait(0)
    assert len(first) == 100
    rest = health.wait(0)
    assert [event.xid for event in (*first, *rest)] == list(range(150))


def test_an_event_of_another_kind_has_no_xid(watched, monkeypatch):
    h100, health = watched()
    health.wait(0)
    real = pynvml.nvmlEventSetWait

    def ecc(events, timeout):
        data = real(events, timeout)
        data.eventType = pynvml.nvmlEventTypeDoubleBitEccError
        return data

    monkeypatch.setattr(pynvml, "nvmlEventSetWait", ecc)
    control.xid(h100.root, 0, 48)
    assert health.wait(0) == (XidEvent(h100.uuids()[0], None),)


def test_an_event_whose_card_no_longer_tells_its_name_names_none(watched):
    h100, health = watched()
    health.wait(0)
    control.xid(h100.root, 0, 79)
    h100.inject("nvmlDeviceGetUUID", pynvml.NVML_ERROR_GPU_IS_LOST)
    assert health.wait(0) == (XidEvent(None, 79),)


def test_a_lost_card_asks_for_a_poll_once_and_the_others_stay_watched(watched):
    h100, health = watched()
    first, second = h100.uuids()
    health.wait(0)
    control.lose(h100.root, 0)
    assert health.wait(1) == (SOME_CARD,)
    assert health.wait(0) == ()
    assert health.unmonitored == (first,)
    control.xid(h100.root, 1, 48)
    assert health.wait(1) == (XidEvent(second, 48),)


def test_events_before_a_loss_are_delivered_with_it(watched):
    h100, health = watched()
    health.wait(0)
    control.xid(h100.root, 0, 79)
    control.lose(h100.root, 0)
    first, marker = health.wait(1)
    assert first.xid == 79
    assert marker == SOME_CARD


def test_a_card_that_came_back_is_watched_again(watched):
    h100, health = watched()
    first = h100.uuids()[0]
    control.lose(h100.root, 0)
    health.poll()
    assert health.wait(0) == ()
    assert health.unmonitored == (first,)
    control.restore(h100.root, 0)
    health.poll()
    assert health.wait(0) == ()
    assert health.unmonitored == ()
    control.xid(h100.root, 0, 48)
    assert health.wait(1) == (XidEvent(first, 48),)


def test_a_loss_that_only_the_registration_saw_is_made_good(watched):
    h100, health = watched()
    h100.inject("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_UNKNOWN, gpu=0)
    health.wait(0)
    assert health.unmonitored == (h100.uuids()[0],)
    health.poll()
    health.wait(0)
    assert health.unmonitored == ()


def test_events_of_the_old_registration_are_delivered_before_the_new_one(watched):
    h100, health = watched()
    first, second = h100.uuids()
    health.wait(0)
    control.xid(h100.root, 0, 48)
    health.watch([second])
    assert health.wait(0) == (XidEvent(first, 48),)
    health.wait(0)
    control.xid(h100.root, 0, 48)
    control.xid(h100.root, 1, 63)
    assert health.wait(1) == (XidEvent(second, 63),)


def test_a_refresh_registers_anew_and_loses_no_event(watched):
    h100, health = watched()
    h100.inject("nvmlDeviceGetSupportedEventTypes", 0, gpu=0)
    health.wait(0)
    first, second = h100.uuids()
    assert health.unmonitored == (first,)
    control.xid(h100.root, 1, 48)
    health.refresh()
    assert health.wait(0) == (XidEvent(second, 48),)
    assert health.wait(0) == ()
    assert health.unmonitored == ()


def test_a_card_without_events_is_unmonitored_for_good_and_no_busy_loop(watched):
    h100, health = watched(count=1)
    h100.inject("nvmlDeviceGetSupportedEventTypes", 0, count=None)
    assert health.wait(0.01) == ()
    assert health.unmonitored == tuple(h100.uuids())
    health.poll()
    control.clear_faults(h100.root)
    assert health.wait(0.01) == ()
    assert health.unmonitored == tuple(h100.uuids())


def test_no_card_at_all_is_waited_for_quietly(watched):
    _, health = watched()
    health.watch([])
    assert health.wait(0.01) == ()
    assert health.poll() == ()


def test_a_refused_wait_is_an_error_and_the_next_call_registers_anew(watched):
    h100, health = watched()
    health.wait(0)
    h100.inject("nvmlEventSetWait", pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(HardwareError, match="nvmlEventSetWait: UNKNOWN"):
        health.wait(0)
    assert health.wait(0) == ()
    control.xid(h100.root, 0, 48)
    assert health.wait(1) == (XidEvent(h100.uuids()[0], 48),)


def test_a_refusal_behind_events_does_not_swallow_them(watched):
    h100, health = watched()
    health.wait(0)
    control.xid(h100.root, 0, 48)
    h100.inject("nvmlEventSetWait", pynvml.NVML_ERROR_UNKNOWN, skip=1)
    assert [event.xid for event in health.wait(0)] == [48]
    assert health.wait(0) == ()


@pytest.mark.parametrize(
    "call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait"]
)
def test_a_library_that_goes_while_waiting_is_an_error_and_comes_back(watched, call):
    h100, health = watched()
    h100.inject(call, pynvml.NVML_ERROR_UNINITIALIZED)
    with pytest.raises(NvmlMissingError):
        health.wait(0)
    assert health.wait(0) == ()
    control.xid(h100.root, 1, 48)
    assert [event.xid for event in health.wait(1)] == [48]


def test_closing_after_the_library_went_is_no_error(watched):
    h100, health = watched()
    health.wait(0)
    h100.nvml.close()
    health.close()
