"""NVML events: every event set gets each event of its cards once."""

import threading

import pynvml
import pytest

from driver.sim import control
from tests.sim.test_sim_faults import elsewhere

XID = pynvml.nvmlEventTypeXidCriticalError


def event_set(*indexes, types=XID):
    events = pynvml.nvmlEventSetCreate()
    for index in indexes:
        pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(index), types, events)
    return events


def drain(events):
    """(index, type, data) of all waiting events."""
    found: list[tuple[int, int, int]] = []
    while True:
        try:
            data = pynvml.nvmlEventSetWait(events, 0)
        except pynvml.NVMLError_Timeout:
            return found
        found.append((pynvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData))


def test_each_event_set_gets_each_event_of_its_cards_once_in_order(node):
    root = node(count=3)
    first, second = event_set(0, 1), event_set(1, 2)
    control.xid(root, 1, 79)
    control.xid(root, 0, 48)
    control.xid(root, 1, 63)
    assert drain(first) == [(1, XID, 79), (0, XID, 48), (1, XID, 63)]
    assert drain(second) == [(1, XID, 79), (1, XID, 63)]
    assert drain(first) == drain(second) == []


def test_events_before_the_registration_are_not_reported(node):
    root = node(count=2)
    control.xid(root, 0, 31)
    events = event_set(0)
    control.xid(root, 1, 32)
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(1), XID, events)
    control.xid(root, 1, 33)
    assert drain(events) == [(1, XID, 33)]


def test_a_whole_card_event_names_no_instance(node):
    root = node(count=1)
    events = event_set(0)
    control.xid(root, 0, 94)
    control.xid(root, 0, 43, gpu_instance=5, compute_instance=0)
    whole, part = (pynvml.nvmlEventSetWait(events, 0) for _ in range(2))
    assert (whole.gpuInstanceId, whole.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    assert (part.gpuInstanceId, part.computeInstanceId) == (5, 0)


def test_a_waiting_process_sees_the_event_of_another(node):
    root = node(count=2)
    events = event_set(0, 1)
    found = []
    waiter = threading.Thread(target=lambda: found.append(pynvml.nvmlEventSetWait(events, 30_000)))
    waiter.start()
    elsewhere(root, "control.xid(root, 1, 119)")
    waiter.join(20)
    assert [event.eventData for event in found] == [119]


def test_waiting_without_an_event_times_out(node, refused):
    node(count=1)
    with refused(pynvml.NVML_ERROR_TIMEOUT):
        pynvml.nvmlEventSetWait(event_set(0), 30)


def test_a_lost_card_ends_the_wait_after_what_was_queued(node, refused):
    root = node(count=2)
    events = event_set(0, 1)
    control.xid(root, 1, 79)
    control.lose(root, 1)
    assert pynvml.nvmlEventSetWait(events, 10_000).eventData == 79
    with refused(pynvml.NVML_ERROR_GPU_IS_LOST):
        pynvml.nvmlEventSetWait(events, 10_000)
    control.restore(root, 1)
    with refused(pynvml.NVML_ERROR_TIMEOUT):
        pynvml.nvmlEventSetWait(events, 0)


def test_only_supported_types_can_be_registered(node, refused):
    node("t4", 1)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
    assert supported & XID
    assert not supported & pynvml.nvmlEventMigConfigChange
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        event_set(0, types=pynvml.nvmlEventTypeAll)
    event_set(0, types=supported)


@pytest.mark.parametrize("end", ["free", "shutdown"])
def test_an_event_set_that_is_gone_is_an_invalid_argument(node, refused, end):
    node(count=1)
    events = event_set(0)
    if end == "free":
        pynvml.nvmlEventSetFree(events)
    else:
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlEventSetWait(events, 0)


def test_freeing_the_set_ends_a_wait_in_another_thread(node):
    node(count=1)
    events, codes = event_set(0), []

    def wait():
        try:
            pynvml.nvmlEventSetWait(events, 30_000)
        except pynvml.NVMLError as error:
            codes.append(error.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    pynvml.nvmlEventSetFree(events)
    waiter.join(20)
    assert codes == [pynvml.NVML_ERROR_INVALID_ARGUMENT]


def test_a_long_backlog_keeps_its_order_and_drops_the_oldest(node):
    root = node(count=1)
    events = event_set(0)
    for number in range(300):
        control.xid(root, 0, number)
    data = [entry[2] for entry in drain(events)]
    assert data == list(range(300 - len(data), 300))
    assert len(data) >= 200
