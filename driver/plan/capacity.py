"""Capacities that shares divide among themselves, each with its request policy (KEP-5075).

Whole units only, and a policy on every one: up to Kubernetes 1.36 the scheduler rounds fractions
of a range, and a capacity without a policy is consumed whole by who does not name it.
"""

from typing import Any

from driver.model.devices import MpsGpu, SharedGpu, TimeSlicedGpu
from driver.model.units import Bytes, binary_quantity, decimal_quantity

_MIB = Bytes(1 << 20)


def shared_capacities(device: SharedGpu) -> dict[str, dict[str, Any]]:
    """Capacities by name, as the API server writes them."""
    # min 1 and step 1 would be refused where the value is 1: "one step larger than the capacity".
    shares = _one_of(decimal_quantity(device.shares), "1")
    if isinstance(device, TimeSlicedGpu):
        if device.memory <= _MIB:
            return {"shares": shares}
        return {"memory": _memory(device.memory, Bytes(0), Bytes(0)), "shares": shares}
    return {"memory": _mps_memory(device), "computePercent": _percent(device), "shares": shares}


def _mps_memory(device: MpsGpu) -> dict[str, Any]:
    if device.equal:
        return _one_of(binary_quantity(device.memory), binary_quantity(device.default_memory))
    return _memory(device.memory, device.default_memory, _MIB)


def _percent(device: MpsGpu) -> dict[str, Any]:
    default = decimal_quantity(device.default_percent)
    if device.equal and device.default_percent:
        return _one_of("100", default)
    return _range("100", default, "0", "1")


def _memory(value: Bytes, default: Bytes, least: Bytes) -> dict[str, Any]:
    return _range(*map(binary_quantity, (value, default, least, _MIB)))


def _range(value: str, default: str, least: str, step: str) -> dict[str, Any]:
    valid = {"min": least, "max": value, "step": step}
    return {"value": value, "requestPolicy": {"default": default, "validRange": valid}}


def _one_of(value: str, only: str) -> dict[str, Any]:
    return {"value": value, "requestPolicy": {"default": only, "validValues": [only]}}
