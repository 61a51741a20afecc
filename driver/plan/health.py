"""One state machine a card: from readings and events to health, and from health to taints."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from api.policy import NodePolicy
from api.reading import show
from driver.errors import StateError
from driver.model.health import CardHealth, Repair
from driver.model.readings import CardReading, XidEvent

# nvmlDeviceGpuRecoveryAction_t
_ACTIONS = {
    0: "None",
    1: "GpuReset",
    2: "NodeReboot",
    3: "DrainP2P",
    4: "DrainAndReset",
    5: "RecoverImexDomain",
}
_UNKNOWN_XID = 999  # NVML could not tell which
# The driver sets the recovery action some time after the event, so readings right after it, and
# two that happen to come together, do not count: an interval lies between regular ones.
_CALM_READINGS = 2
_MAX_TAINTS = 4  # a device on Kubernetes 1.34; 16 since 1.35


def next_health(
    previous: CardHealth, seen: CardReading | XidEvent, policy: NodePolicy
) -> CardHealth:
    """Health of a card after a reading or an event of that card.

    An event only ever makes it worse: a harmless XID after a bad one changes nothing
    (dra-driver-nvidia-gpu#1243), and the first bad one is kept, being the cause. Readings clear
    what they find mended; see ``_xid_after``. An event without a card or without an XID changes
    nothing by itself: it asks for readings.
    """
    match seen:
        case XidEvent():
            return _after_event(previous, seen, policy)
        case CardReading(lost=True):
            return replace(previous, lost=True, calm=0)
        case CardReading():
            return _after_reading(previous, seen)
        case _:
            assert_never(seen)


def after_boot(previous: CardHealth) -> CardHealth:
    """Health after the node started anew: XIDs were of the boot before, the rest is read again."""
    return replace(previous, xid=None, calm=0)


def taints(
    health: CardHealth, policy: NodePolicy, driver: str = "gpu.aliquot.dev"
) -> list[dict[str, str]]:
    """Taints for every device of the card, the worst first, at most four.

    Values change only with what an administrator has to do: counts would rewrite the
    ResourceSlice with every error.
    """
    found = {
        "lost": "true" if health.lost else None,
        "recovery": action_name(health.recovery_action) if health.recovery_action else None,
        "xid": None if health.xid is None else str(health.xid),
        "ecc": "uncorrected" if health.ecc else None,
        "retired": None if health.repair is Repair.NONE else health.repair.value,
    }
    return [
        {"key": f"{driver}/{key}", "value": value, "effect": policy.taint_effect}
        for key, value in found.items()
        if value is not None
    ][:_MAX_TAINTS]


def describe(health: CardHealth) -> str:
    """What is wrong and what helps, for the kubelet's health stream, events and logs."""
    repairs = {
        Repair.NONE: "",
        Repair.RESET: "memory was retired: reset the card to put spare rows in",
        Repair.REPLACE: "no spare memory rows are left: replace the card",
    }
    found = [
        "the card is lost: it needs a reset, or its node a reboot" if health.lost else "",
        f"the driver asks for {action_name(health.recovery_action)}"
        if health.recovery_action
        else "",
        "" if health.xid is None else f"XID {health.xid}",
        "uncorrected memory errors since the last reset" if health.ecc else "",
        repairs[health.repair],
        f"could not be read: {health.unreadable}" if health.unreadable else "",
    ]
    return "; ".join(filter(None, found))


def action_name(action: int) -> str:
    """A recovery action as a label value; numbers of a newer driver as they are."""
    return _ACTIONS.get(action, str(action))


def to_dict(health: CardHealth) -> dict[str, Any]:
    """As JSON data, to be kept over a restart."""
    return {
        "lost": health.lost,
        "unreadable": health.unreadable,
        "xid": health.xid,
        "calm": health.calm,
        "recoveryAction": health.recovery_action,
        "ecc": health.ecc,
        "repair": health.repair.value,
    }


def from_dict(raw: Mapping[str, Any]) -> CardHealth:
    """The inverse of ``to_dict``; fields it does not know are left aside, missing ones are fine.

    Raises:
        StateError: naming the field that cannot be trusted.
    """
    values = to_dict(CardHealth()) | {key: raw[key] for key in to_dict(CardHealth()) if key in raw}
    number, text = (int,), (str, type(None))
    wanted: dict[str, tuple[type, ...]] = {
        "lost": (bool,),
        "unreadable": text,
        "xid": (int, type(None)),
        "calm": number,
        "recoveryAction": number,
        "ecc": (bool,),
        "repair": (str,),
    }
    for key, types in wanted.items():
        if type(values[key]) not in types:
            raise StateError(f"health of a card: {key}: got {show(values[key])}")
    if values["repair"] not in {repair.value for repair in Repair}:
        raise StateError(f"health of a card: repair: got {show(values['repair'])}")
    return CardHealth(
        lost=values["lost"],
        unreadable=values["unreadable"],
        xid=values["xid"],
        calm=values["calm"],
        recovery_action=values["recoveryAction"],
        ecc=values["ecc"],
        repair=Repair(values["repair"]),
    )


def _after_event(previous: CardHealth, event: XidEvent, policy: NodePolicy) -> CardHealth:
    ignored = {None, _UNKNOWN_XID, *policy.ignored_xids}
    if event.gpu is None or event.xid in ignored:
        return previous
    return replace(previous, xid=event.xid if previous.xid is None else previous.xid, calm=0)


def _after_reading(previous: CardHealth, reading: CardReading) -> CardHealth:
    """What was not told keeps its state where the reading failed; else the card lacks it."""
    failed = reading.problem is not None
    action = reading.recovery_action
    if action is None:
        action = previous.recovery_action if failed else 0
    ecc = previous.ecc if failed else False
    if reading.ecc_uncorrected is not None:
        ecc = reading.ecc_uncorrected > 0
    calm = previous.calm + reading.regular if reading.recovery_action == 0 and not failed else 0
    mended = _is_mended(previous, reading, calm)
    return CardHealth(
        lost=False,
        unreadable=reading.problem,
        xid=None if mended else previous.xid,
        calm=0 if mended or previous.xid is None else calm,
        recovery_action=action,
        ecc=ecc,
        repair=_repair(previous, reading),
    )


def _is_mended(previous: CardHealth, reading: CardReading, calm: int) -> bool:
    """Whether the cause of an XID is gone (dra-driver-nvidia-gpu#1455).

    The card was lost and answers again, so it was reset; or the driver asked for a recovery and
    no longer does; or it asked for none in two regular readings since. A card that does not tell
    its recovery action keeps the XID until the next boot.
    """
    if reading.problem is not None:
        return False
    if previous.lost:
        return True
    return reading.recovery_action == 0 and (
        previous.recovery_action != 0 or calm >= _CALM_READINGS
    )


def _repair(previous: CardHealth, reading: CardReading) -> Repair:
    if reading.remap_failed:
        return Repair.REPLACE
    if reading.remap_pending or reading.retired_pending:
        return Repair.RESET
    told = (reading.remap_failed, reading.remap_pending, reading.retired_pending)
    silent = reading.problem is not None and all(each is None for each in told)
    return previous.repair if silent else Repair.NONE
