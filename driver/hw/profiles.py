"""The MIG profiles of a card."""

from driver.errors import HardwareError, NotSupportedError
from driver.hw.codes import Return
from driver.hw.nvml import Handle, ask
from driver.hw.readouts import InstanceProfile

_BOUND = 64  # for broken answers only: API 13 knows 18 profiles


def instance_profiles(handle: Handle) -> tuple[InstanceProfile, ...]:
    """The GPU instance profiles of the card; empty where it has none.

    The profile enum is walked until INVALID_ARGUMENT, skipping NOT_SUPPORTED (nvml.h).
    """
    found: list[InstanceProfile] = []
    for profile in range(_BOUND):
        try:
            found.append(_read(handle, profile))
        except NotSupportedError:
            continue
        except HardwareError as error:
            if error.code == Return.INVALID_ARGUMENT:
                break
            raise
    return tuple(found)


def _read(handle: Handle, profile: int) -> InstanceProfile:
    call = "nvmlDeviceGetGpuInstanceProfileInfo"
    try:
        info = ask(call, handle, profile, 2)
    except NotSupportedError as error:
        if error.code == Return.NOT_SUPPORTED:
            raise
        info = ask(call, handle, profile, 1)  # a library without version 2
    return InstanceProfile(
        id=int(info.id),
        compute_slices=int(info.sliceCount),
        copy=int(info.copyEngineCount),
        decoders=int(info.decoderCount),
        encoders=int(info.encoderCount),
        jpeg=int(info.jpegCount),
        ofa=int(info.ofaCount),
    )
