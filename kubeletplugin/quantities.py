"""Kubernetes quantities (``k8s.io/apimachinery/pkg/api/resource``), strictly parsed."""

import re
from decimal import Decimal

# ASCII: without it \d takes digits of every script. fullmatch: $ would allow a newline.
_QUANTITY = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d+))?", re.ASCII
)
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(value: object) -> Decimal:
    """``"10Gi"``, ``"500m"``, ``"1e3"`` or a JSON number, exactly.

    Raises ``ValueError``.
    """
    match = _QUANTITY.fullmatch(str(value))
    if match is None or isinstance(value, bool):
        raise ValueError(f"not a quantity: {value!r}")
    number, suffix, exponent = match.groups()
    if suffix in _BINARY:
        return Decimal(number) * Decimal(2) ** _BINARY[suffix]
    power = int(exponent) if exponent else _POWERS.get(suffix or "", 0)
    return Decimal(number) * Decimal(10) ** power


def canonical(value: object) -> str:
    """As the API server writes it back: ``1024Mi`` → ``1Gi``, ``0.5`` → ``500m``, 1000 → ``1k``.

    The largest suffix without a fraction; binary suffixes only from 1024 upward and only where
    the text had one (``Quantity.CanonicalizeBytes``). Raises ``ValueError``.
    """
    amount = quantity(value)
    text = str(value)
    if text[-1:] == "i" and abs(amount) >= 1024:
        scales = [(suffix, Decimal(2) ** power) for suffix, power in _BINARY.items()]
    elif "e" in text.lower() and text[-1:] not in _POWERS:
        return text
    else:
        scales = [(suffix, Decimal(10) ** power) for suffix, power in _POWERS.items()]
    for suffix, scale in sorted([*scales, ("", Decimal(1))], key=lambda item: -item[1]):
        if amount % scale == 0 and amount:
            return f"{int(amount / scale)}{suffix}"
    return "0"
