"""What the driver knows of the node beyond claims, such as which cards were found faulty.

It is worth keeping over a restart and never worth stopping for: it can be found out again.
"""

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from driver.errors import StateError
from driver.state import quarantine
from driver.state.files import encode, make_folder, write_atomically
from driver.state.quarantine import Damaged

VERSION = 1


class Known:
    """One JSON object in one file. Safe to use from several threads.

    ``path`` must not lie in the journal's folder, where every ``.json`` file is a claim's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._on_disk: bytes | None = None  # None: not known
        self._damaged: Damaged | None = None

    @property
    def damaged(self) -> Damaged | None:
        """What the last ``load`` had to set aside, to be reported."""
        return self._damaged

    def load(self) -> dict[str, Any]:
        """The object as last saved; empty when there is none or it cannot be trusted.

        What cannot be trusted is moved to ``quarantine`` beside it and told by ``damaged``.
        """
        with self._lock:
            self._on_disk = self._damaged = None
            try:
                values = quarantine.read_envelope(self._path, VERSION)
            except FileNotFoundError:
                return {}
            except StateError as error:
                self._damaged = quarantine.set_aside(self._path, str(error))
                return {}
            self._on_disk = encode(VERSION, values)
            return values

    def save(self, values: Mapping[str, Any]) -> bool:
        """Write ``values`` (JSON) unless the file says the same already; True when it wrote.

        Raises:
            StateError: the disk refused; see ``files.write_atomically``.
        """
        data = encode(VERSION, values)
        with self._lock:
            if data == self._on_disk:
                return False
            make_folder(self._path.parent, 0o700)
            self._on_disk = None  # until the write is over, either may be there
            write_atomically(self._path, data)
            self._on_disk = data
            return True
