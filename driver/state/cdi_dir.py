"""The CDI folder: projections of the journal that can be rewritten at any time."""

import json
import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from driver.state.files import (
    is_safe_name,
    list_folder,
    make_folder,
    remove,
    remove_litter,
    safe_name,
    write_atomically,
)

CDI_SETTING = "--cdi-dir"

_SUFFIX = ".json"


class CdiDir:
    """Our specs in a folder that we share with other vendors' files.

    ``name`` is the part of the file name between ``prefix`` and ``.json``, for instance a claim's
    UID. Nothing here calls fsync: the usual folder (``/var/run/cdi``) is memory and empty after a
    reboot. On a disk a power loss may leave an empty file, or bring a removed one back; the
    comparison at start rewrites the one and ``strays`` finds the other.

    Files come to be in a folder of their own inside it, where runtimes do not look. Beside the
    others containerd would read the whole folder anew for each of three changes, while the pod
    waits for the claim.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._drafts = folder / f".{prefix}drafts"

    def ensure(self, name: str, spec: Mapping[str, Any]) -> bool:
        """Make the file of ``name`` say ``spec``; True when it had to be written.

        Raises:
            StateError: the folder is read-only, full or cannot be made.
            ClaimError: ``name`` cannot be part of a file name.
        """
        path = self._path(name)
        data = json.dumps(spec, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        if _content(path) == data:
            return False
        if not self._drafts.is_dir():
            make_folder(self._folder, 0o755, setting=CDI_SETTING)
            make_folder(self._drafts, 0o700, setting=CDI_SETTING)
        write_atomically(
            path, data, setting=CDI_SETTING, mode=0o644, durable=False, by_way_of=self._drafts
        )
        return True

    def remove(self, name: str) -> None:
        """Delete the file of ``name``; that there is none is fine.

        Raises:
            StateError: the file is still there.
            ClaimError: ``name`` cannot be part of a file name.
        """
        remove(self._path(name), setting=CDI_SETTING, durable=False)

    def strays(self, keep: Set[str]) -> tuple[str, ...]:
        """Names of our own files that are not in ``keep``, sorted. Others' files are not seen.

        Raises:
            StateError: the folder exists but cannot be read.
        """
        names = (
            path.name.removeprefix(self._prefix).removesuffix(_SUFFIX)
            for path in list_folder(self._folder, setting=CDI_SETTING)
            if path.name.startswith(self._prefix) and path.name.endswith(_SUFFIX)
        )
        return tuple(name for name in names if is_safe_name(name) and name not in keep)

    def clear_litter(self) -> None:
        """Delete our temporary files that a crash left; runtimes never read them.

        Raises:
            StateError: the folder exists but cannot be read.
        """
        # Beside the others it is of earlier versions.
        remove_litter(self._folder, self._prefix, setting=CDI_SETTING)
        remove_litter(self._drafts, setting=CDI_SETTING)

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._prefix}{safe_name(name)}{_SUFFIX}"


def _content(path: Path) -> bytes | None:
    """The bytes on disk; None for whatever cannot be read, which is then replaced."""
    if not os.path.exists(path):  # as for every new claim; the error below takes ten times as long
        return None
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return None
