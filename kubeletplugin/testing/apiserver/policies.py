"""Rules for the request policy of a capacity (KEP-5075, validation.go of resource.k8s.io)."""

from collections.abc import Iterator
from decimal import Decimal

from kubeletplugin.contract import Object
from kubeletplugin.quantities import quantity
from kubeletplugin.testing.apiserver.errors import Problem


def policy_problems(path: str, policy: Object, value: Decimal) -> Iterator[Problem]:
    """``value`` is the capacity's total."""
    values, bounds = policy.get("validValues"), policy.get("validRange")
    if values and bounds:
        yield Problem(path, "Invalid value: only one of validValues or validRange may be set")
        return
    if (values or bounds) and "default" not in policy:
        yield Problem(f"{path}.default", "Required value", "FieldValueRequired")
        return
    try:
        if values:
            yield from _values(path, [*map(quantity, values)], quantity(policy["default"]), value)
        elif bounds:
            yield from _range(path, bounds, quantity(policy["default"]), value)
    except ValueError as error:
        yield Problem(path, f"Invalid value: {error}")


def _values(
    path: str, values: list[Decimal], default: Decimal, value: Decimal
) -> Iterator[Problem]:
    if len(values) > 10:
        yield Problem(f"{path}.validValues", "Too many: must have at most 10 items")
    if values != sorted(set(values)):
        yield Problem(f"{path}.validValues", "Invalid value: must be ascending without repetition")
    if any(found > value for found in values):
        yield Problem(f"{path}.validValues", f"Invalid value: larger than capacity value {value}")
    if default not in values:
        yield Problem(f"{path}.default", "Invalid value: default must be one of validValues")


def _range(path: str, bounds: Object, default: Decimal, value: Decimal) -> Iterator[Problem]:
    if "min" not in bounds:
        yield Problem(f"{path}.validRange.min", "Required value", "FieldValueRequired")
        return
    low = quantity(bounds["min"])
    high = quantity(bounds.get("max", str(value)))
    if not 0 <= low <= value:
        yield Problem(f"{path}.validRange.min", f"Invalid value: not between 0 and {value}")
    if not low <= high <= value:
        yield Problem(f"{path}.validRange.max", f"Invalid value: not between min and {value}")
    if not low <= default <= high:
        yield Problem(f"{path}.default", "Invalid value: not between min and max")
    if "step" in bounds:
        top = high if "max" in bounds else None
        yield from _step(path, quantity(bounds["step"]), (low, default, top), value)


def _step(
    path: str, step: Decimal, marks: tuple[Decimal, Decimal, Decimal | None], value: Decimal
) -> Iterator[Problem]:
    low, *others = marks
    if step <= 0:
        yield Problem(f"{path}.validRange.step", "Invalid value: must be greater than zero")
        return
    if low + step > value:
        yield Problem(
            f"{path}.validRange.step",
            "Invalid value: one step above min is larger than capacity value",
        )
    if any(mark is not None and (mark - low) % step for mark in others):
        yield Problem(
            f"{path}.validRange.step",
            "Invalid value: default and max must be min plus whole steps",
        )
