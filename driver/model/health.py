"""What is known to be wrong with a card. Plain values, kept over restarts."""

from dataclasses import dataclass
from enum import Enum


class Repair(Enum):
    """What memory cells that went bad wait for."""

    NONE = "none"
    RESET = "reset"  # spare rows or pages are put in at the next reset
    REPLACE = "replace"  # no spare is left


@dataclass(frozen=True, slots=True)
class CardHealth:
    """The state of one card; the default is a healthy one."""

    lost: bool = False
    unreadable: str | None = None  # why the card did not answer in full
    xid: int | None = None  # the first one that counts since the card was last healthy
    calm: int = 0  # good readings in a row since that XID
    recovery_action: int = 0  # nvmlDeviceGpuRecoveryAction_t; 0 is "none"
    ecc: bool = False  # uncorrected errors since the last reset
    repair: Repair = Repair.NONE
    mps: str | None = None  # why the MPS control daemon that claims use is down

    @property
    def healthy(self) -> bool:
        """Nothing is known to be wrong. A card that only failed to answer is not called faulty."""
        return not (
            self.lost
            or self.xid is not None
            or self.recovery_action
            or self.ecc
            or self.repair is not Repair.NONE
            or self.mps is not None
        )
