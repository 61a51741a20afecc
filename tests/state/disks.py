"""Real file systems that are full or read-only."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def tiny_disk(folder: Path) -> Iterator[Path]:
    """A tmpfs of 64 KiB mounted at ``folder``; skips the test where mounting is not permitted."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", "size=64k", "tiny", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def make_read_only(mounted: Path) -> None:
    _mount("-o", "remount,ro", str(mounted))


def _mount(*args: str) -> None:
    try:
        done = subprocess.run(["mount", *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


def fill(disk: Path) -> Path:
    """Take every byte that is left; returns the file to delete to get them back."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (disk / "probe").write_bytes(b"x")
    (disk / "probe").unlink()
    return filler


def refuse(code: int):
    """Stands in for an ``os`` function on a disk that answers ``code``."""

    def call(*args: object, **_: object) -> None:
        raise OSError(code, os.strerror(code), *map(str, args[:1]))

    return call
