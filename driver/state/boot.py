"""Which boot of the node this is: what a step changed on a card is gone after the next one."""

import re
from pathlib import Path

from driver.errors import StateError

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def boot_id(proc_root: Path) -> str:
    """The kernel's random id of this boot, from ``<proc_root>/sys/kernel/random/boot_id``.

    ``proc_root`` is the proc file system itself: ``/proc``, or where a test put one.

    Raises:
        StateError: it cannot be read or is not a UUID; without it nobody can tell whether what
            the records say was done is still there.
    """
    path = proc_root / "sys/kernel/random/boot_id"
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(
            f"{path} cannot be read: {error}; wanted the kernel's boot id, mount proc there"
        ) from error
    if not _UUID.fullmatch(text):
        raise StateError(f"{path} holds {text[:64]!r}; wanted a UUID, mount proc there")
    return text
