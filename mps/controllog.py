"""control.log of a card: followed for servers that failed, and kept small.

The daemon runs in the foreground with its output appended to the file, so cutting the file down
leaves no hole. What is written between the copy and the cut is lost.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

LARGEST, KEPT = 1 << 20, 1 << 18  # bytes; a probe every 10 s fills it in 6 hours
_MOST_READ = 1 << 16

_EXITED = re.compile(r"\bServer (\d+) exited with status (-?\d+)")
_READY = re.compile(r"\bNEW SERVER (\d+): Ready")


@dataclass(frozen=True, slots=True)
class News:
    """What new lines tell: a server that could not run, or one that can."""

    failed: str | None = None
    ready: bool = False


def news_in(text: str) -> News:
    """Of whole lines, the last word counts."""
    found = News()
    for line in text.splitlines():
        if (exited := _EXITED.search(line)) and exited[2] != "0":
            found = News(f"MPS server {exited[1]} exited with status {exited[2]}")
        elif _READY.search(line):
            found = News(ready=True)
    return found


class ControlLog:
    """Reads on from where it was; a shorter file was cut by us and is read from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def to_end(self) -> None:
        """What is in it by now is no news."""
        with contextlib.suppress(OSError):
            self._place = self._path.stat().st_size

    def news(self) -> News:
        """Of the lines since the last call. A file that cannot be read has none."""
        try:
            size = self._path.stat().st_size
            if size < self._place:
                self._place = 0
            with self._path.open("rb") as file:
                file.seek(max(self._place, size - _MOST_READ))
                data = file.read(_MOST_READ)
                end = file.tell()
        except OSError:
            return News()
        whole, newline, rest = data.rpartition(b"\n")
        self._place = end - len(rest)  # the last line may still be written
        if newline and size > LARGEST:
            self._cut()
        return news_in(whole.decode(errors="replace"))

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                kept = os.pread(fd, KEPT, max(0, size - KEPT))
                self._path.with_name(f"{self._path.name}.1").write_bytes(kept)
                os.ftruncate(fd, 0)
            finally:
                os.close(fd)
            self._place = 0


def cut_to(path: Path, largest: int = LARGEST) -> None:
    """Empty a log that others write (server.log) once it is larger than ``largest`` bytes."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > largest:
            os.truncate(path, 0)
