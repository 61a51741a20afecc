"""What the health of a card looks like at one moment: facts, no judgement."""

from dataclasses import dataclass

from driver.model.ids import GpuUuid


@dataclass(frozen=True, slots=True)
class CardReading:
    """One card, polled once. Fields are None where the card or its driver does not tell."""

    gpu: GpuUuid
    lost: bool  # off the bus, waiting for a reset, or no longer listed by NVML
    recovery_action: int | None = None  # nvmlDeviceGpuRecoveryAction_t; 0 is "none"
    ecc_uncorrected: int | None = None  # volatile: since the driver was loaded or the card reset
    remap_pending: bool | None = None  # rows will be remapped at the next reset (Ampere and newer)
    remap_failed: bool | None = None  # no spare row left: the board must be replaced
    retired_pending: bool | None = None  # pages retired at the next reset (before Ampere)
    regular: bool = False  # by the clock: the regular one before is a health interval older
    problem: str | None = None  # why something could not be read; None when all was answered


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One NVML event.

    ``gpu`` None: NVML did not say which card (``NVML_ERROR_GPU_IS_LOST`` from the wait, or a
    device that no longer tells its UUID); every card must be polled. ``xid`` None: the event is
    not an XID (ECC, recovery action, a lost card), so the card must be polled to learn more.
    """

    gpu: GpuUuid | None
    xid: int | None  # 999 is NVML's "unknown"
    gpu_instance: int | None = None  # None: the whole card, or not attributable
    compute_instance: int | None = None
