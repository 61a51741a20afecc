"""How a card is: ECC, remapped rows, retired pages, and field values."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from driver.sim.nvml.codes import INVALID_ARGUMENT, NOT_SUPPORTED, Refused
from driver.sim.nvml.cvalues import number, put, room, target
from driver.sim.nvml.device import need
from driver.sim.nvml.registry import AFTER_535, symbol
from driver.sim.nvml.session import Gpu
from driver.sim.world import GpuState

_UNSIGNED_INT, _UNSIGNED_LONG_LONG = 1, 3  # NVML_VALUE_TYPE_*
_LOCATION_DEVICE_MEMORY, _LOCATIONS = 2, 8  # NVML_MEMORY_LOCATION_*
RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

# NVML_FI_DEV_*: ECC totals (volatile, aggregate), row remapping, NVLink count
_FIELDS: Mapping[int, tuple[int, Callable[[Gpu], int]]] = {
    3: (_UNSIGNED_LONG_LONG, lambda gpu: gpu.state.ecc_corrected),
    4: (_UNSIGNED_LONG_LONG, lambda gpu: gpu.state.ecc_uncorrected),
    5: (_UNSIGNED_LONG_LONG, lambda gpu: gpu.state.ecc_corrected_ever),
    6: (_UNSIGNED_LONG_LONG, lambda gpu: gpu.state.ecc_uncorrected_ever),
    91: (_UNSIGNED_INT, lambda gpu: gpu.profile.links.count if gpu.profile.links else 0),
    142: (_UNSIGNED_INT, lambda gpu: gpu.state.remapped_corrected),
    143: (_UNSIGNED_INT, lambda gpu: gpu.state.remapped_uncorrected),
    144: (_UNSIGNED_INT, lambda gpu: int(gpu.state.remapped_pending)),
    145: (_UNSIGNED_INT, lambda gpu: int(gpu.state.remapped_failure)),
    RECOVERY_FIELD: (_UNSIGNED_INT, lambda gpu: gpu.state.recovery_action),
}
_REMAPPING_FIELDS = frozenset({142, 143, 144, 145})


@symbol("nvmlDeviceGetEccMode")
def _ecc_mode(_gpu: Gpu, current: Any, pending: Any) -> int:
    return put(current, 1) or put(pending, 1)


@symbol("nvmlDeviceGetTotalEccErrors")
def _total_ecc(gpu: Gpu, error: Any, counter: Any, out: Any) -> int:
    return put(out, _ecc_count(gpu.state, number(error), number(counter)))


@symbol("nvmlDeviceGetMemoryErrorCounter")
def _memory_errors(gpu: Gpu, error: Any, counter: Any, location: Any, out: Any) -> int:
    """All simulated errors are in the device memory."""
    place = number(location)
    if not 0 <= place < _LOCATIONS:
        raise Refused(INVALID_ARGUMENT)
    count = _ecc_count(gpu.state, number(error), number(counter))
    return put(out, count if place == _LOCATION_DEVICE_MEMORY else 0)


def _ecc_count(state: GpuState, error: int, counter: int) -> int:
    counts = {
        (0, 0): state.ecc_corrected,
        (1, 0): state.ecc_uncorrected,
        (0, 1): state.ecc_corrected_ever,
        (1, 1): state.ecc_uncorrected_ever,
    }
    if (error, counter) not in counts:
        raise Refused(INVALID_ARGUMENT)
    return counts[error, counter]


@symbol("nvmlDeviceGetRemappedRows")
def _remapped(gpu: Gpu, corrected: Any, uncorrected: Any, pending: Any, failure: Any) -> int:
    need(gpu.profile.row_remapping)
    state = gpu.state
    put(corrected, state.remapped_corrected)
    put(uncorrected, state.remapped_uncorrected)
    put(pending, int(state.remapped_pending))
    return put(failure, int(state.remapped_failure))


@symbol("nvmlDeviceGetRetiredPages")
def _retired_pages(gpu: Gpu, cause: Any, count: Any, _pages: Any) -> int:
    """Page retirement ended with Ampere; no page of a simulated older card is retired."""
    need(not gpu.profile.row_remapping)
    if number(cause) not in {0, 1}:
        raise Refused(INVALID_ARGUMENT)
    room(count, None, 0)
    return 0


@symbol("nvmlDeviceGetRetiredPages_v2")
def _retired_pages_v2(gpu: Gpu, cause: Any, count: Any, pages: Any, _times: Any = None) -> int:
    return _retired_pages(gpu, cause, count, pages)


@symbol("nvmlDeviceGetRetiredPagesPendingStatus")
def _retired_pending(gpu: Gpu, out: Any) -> int:
    need(not gpu.profile.row_remapping)
    return put(out, 0)


@symbol("nvmlDeviceGetFieldValues")
def _field_values(gpu: Gpu, count: Any, values: Any) -> int:
    """Each field carries its own return code; the call itself succeeds."""
    array = target(values)
    now = time.time_ns() // 1000
    for position in range(number(count)):
        entry = array[position]
        entry.timestamp, entry.latencyUsec = now, 0
        entry.nvmlReturn = _field(gpu, entry)
    return 0


def _field(gpu: Gpu, entry: Any) -> int:
    field_id = int(entry.fieldId)
    kind, read = _FIELDS.get(field_id, (0, None))
    old = field_id == RECOVERY_FIELD and gpu.world.driver_major < AFTER_535
    unmapped = field_id in _REMAPPING_FIELDS and not gpu.profile.row_remapping
    if read is None or old or unmapped:
        return NOT_SUPPORTED
    entry.valueType = kind
    if kind == _UNSIGNED_INT:
        entry.value.uiVal = read(gpu)
    else:
        entry.value.ullVal = read(gpu)
    return 0
