import pynvml
import pytest

from driver.errors import (
    DeviceBusyError,
    GpuLostError,
    HardwareError,
    NoPermissionError,
    NotSupportedError,
    NvmlMissingError,
)
from driver.hw.codes import Return, describe, optional
from driver.hw.nvml import nvml_call


def test_every_return_code_of_the_binding_has_its_name_here():
    theirs = {
        name.removeprefix("NVML_ERROR_"): value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_")
    }
    ours = {code.name: code.value for code in Return}
    assert theirs.items() <= ours.items()
    assert len(theirs) > 25


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(pynvml.NVML_ERROR_GPU_IS_LOST, GpuLostError, id="lost"),
        pytest.param(pynvml.NVML_ERROR_RESET_REQUIRED, GpuLostError, id="reset required"),
        pytest.param(pynvml.NVML_ERROR_IN_USE, DeviceBusyError, id="in use"),
        pytest.param(pynvml.NVML_ERROR_NOT_SUPPORTED, NotSupportedError, id="not supported"),
        pytest.param(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, NotSupportedError, id="no function"),
        pytest.param(
            pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NotSupportedError, id="struct version"
        ),
        pytest.param(pynvml.NVML_ERROR_NO_PERMISSION, NoPermissionError, id="no permission"),
        pytest.param(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, NvmlMissingError, id="no library"),
        pytest.param(pynvml.NVML_ERROR_DRIVER_NOT_LOADED, NvmlMissingError, id="no driver"),
        pytest.param(pynvml.NVML_ERROR_UNINITIALIZED, NvmlMissingError, id="uninitialised"),
        pytest.param(
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, NvmlMissingError, id="half an update"
        ),
        pytest.param(pynvml.NVML_ERROR_UNKNOWN, HardwareError, id="any other"),
        pytest.param(4711, HardwareError, id="a code of the future"),
    ],
)
def test_nvml_codes_become_our_errors_and_keep_code_and_cause(code, expected):
    with (
        pytest.raises(expected, match=r"^nvmlDeviceGetUUID: ") as caught,
        nvml_call("nvmlDeviceGetUUID"),
    ):
        raise pynvml.NVMLError(code)
    assert type(caught.value) is expected
    assert caught.value.code == code
    assert caught.value.__cause__.value == code


def test_a_text_that_is_not_utf8_is_a_hardware_error():
    with pytest.raises(HardwareError, match="not UTF-8"), nvml_call("nvmlDeviceGetName"):
        b"\xff".decode()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param(12, "LIBRARY_NOT_FOUND (12): libnvidia-ml.so.1 was not found", id="library"),
        pytest.param(9, "DRIVER_NOT_LOADED (9): the library is there", id="driver"),
        pytest.param(23, "INSUFFICIENT_RESOURCES (23)", id="no remedy known"),
        pytest.param(4711, "return code 4711", id="unknown code"),
    ],
)
def test_a_code_is_described_without_asking_the_library(code, text, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    assert describe(code).startswith(text)


def _raise(error):
    raise error


def test_what_a_card_does_not_tell_is_none():
    assert optional(lambda: 7) == 7
    assert optional(lambda: _raise(NotSupportedError("call", "reason"))) is None
    assert optional(lambda: _raise(HardwareError("call", "reason"))) is None


@pytest.mark.parametrize("kind", [GpuLostError, NvmlMissingError])
def test_a_lost_card_or_library_is_not_mistaken_for_an_unsupported_call(kind):
    with pytest.raises(kind):
        optional(lambda: _raise(kind("call", "reason")))
