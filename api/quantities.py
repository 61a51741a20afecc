"""Amounts of memory as people write them: ``14Gi``, ``512Mi``, ``10.5Gi``, ``40G``, 1048576.

The forms of a Kubernetes quantity that make sense for memory; no sign, no exponent.
"""

import re
from decimal import Decimal

from api.reading import Reader

MIB = 1 << 20
WANTED = "an amount of memory such as 14Gi, 512Mi or 10.5Gi"

# ASCII: \d would take digits of every script.
_FORM = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)([KMGT]i|[kMGT])?", re.ASCII)
_UNITS = {
    "": 1,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}
_MOST = 1 << 50  # bytes; far above any card, far below what the API takes


def read_memory(reader: Reader, path: str, value: object, low: int = MIB) -> int | None:
    """Bytes, rounded down to whole MiB, not below ``low``; a problem and None otherwise."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    match = _FORM.fullmatch(text)
    size = int(Decimal(match[1]) * _UNITS[match[2] or ""]) if match else -1
    if not low <= size <= _MOST:
        least = f", at least {low // MIB}Mi" if low else ""
        reader.wrong(path, value, f"{WANTED}{least}")
        return None
    return size // MIB * MIB
