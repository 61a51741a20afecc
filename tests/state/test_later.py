import contextlib
import errno
import os
from pathlib import Path
from threading import Event, Thread

import pytest

from driver.state import later
from driver.state.later import Later

MOST_S = 30


@contextlib.contextmanager
def one_round():
    """The thread waits while what belongs to one round is given to it."""
    hold = Event()

    def wait():
        hold.wait(MOST_S)

    later._do(wait)
    try:
        yield
    finally:
        hold.set()


@pytest.fixture
def work(tmp_path):
    work = Later(tmp_path)
    work.flush()  # of other tests' folders: one thread works for all
    return work


def written(folder, *names):
    paths = [folder / name for name in names]
    for path in paths:
        path.write_text("x")
    return paths


def path_of(fd):
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


@pytest.fixture
def disk(monkeypatch):
    """What reached the disk; ``refused`` files do not."""

    class Disk:
        def __init__(self):
            self.synced, self.refused, self.error = [], set(), OSError(errno.EIO, "I/O error")

    disk, real = Disk(), os.fsync

    def fsync(fd):
        if path_of(fd).name in disk.refused:
            raise disk.error
        real(fd)
        disk.synced.append(path_of(fd))

    monkeypatch.setattr(os, "fsync", fsync)
    return disk


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), ValueError("what is this")])
def test_a_file_that_cannot_be_synced_keeps_no_other_from_the_disk(
    work, disk, tmp_path, caplog, error
):
    first, second, third = written(tmp_path, "first", "second", "third")
    disk.refused, disk.error = {"first"}, error
    with one_round():
        work.sync(first)
        work.sync(second)
        work.discard(third)
    work.flush()
    assert disk.synced == [second, tmp_path]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
    (told,) = caplog.records
    assert f"{first}" in told.getMessage()
    assert "power loss" in told.getMessage()
    assert f"{second}" not in told.getMessage()


def test_a_file_that_cannot_be_deleted_keeps_no_other_from_it(
    work, disk, tmp_path, caplog, monkeypatch
):
    kept, gone = written(tmp_path, "kept", "gone")
    real = os.unlink

    def unlink(path):
        if ".kept." in str(path):
            raise OSError(errno.EPERM, "not permitted")
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    for path in (kept, gone):
        work.discard(path)
    work.flush()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".kept.")
    assert disk.synced[-1] == tmp_path
    (told,) = caplog.records
    assert f"{left} was not removed" in told.getMessage()


def test_a_broken_disk_is_told_of_in_one_line_of_bounded_length(work, disk, tmp_path, caplog):
    paths = written(tmp_path, *(f"file-{n}" for n in range(50)))
    disk.refused = {path.name for path in paths}
    with one_round():
        for path in paths:
            work.sync(path)
    work.flush()
    (told,) = caplog.records
    assert told.getMessage().count("was not synced") == 3
    assert f"and 47 more of {tmp_path}" in told.getMessage()


def test_an_error_of_the_drivers_own_does_not_end_the_thread(
    work, disk, tmp_path, caplog, monkeypatch
):
    first, second = written(tmp_path, "first", "second")
    with monkeypatch.context() as patched:
        patched.setattr(later, "_each", lambda *_: 1 / 0)
        work.sync(first)
        work.flush()
    (told,) = caplog.records
    assert told.exc_info is not None
    work.sync(second)
    work.flush()
    assert disk.synced == [second, tmp_path]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_is_gone_is_begun_anew(work, disk, tmp_path):
    worker = later._worker
    assert worker is not None

    def end():
        raise SystemExit

    later._do(end)
    worker.join(MOST_S)
    assert not worker.is_alive()
    (path,) = written(tmp_path, "file")
    work.sync(path)
    work.flush()
    assert disk.synced == [path, tmp_path]


def test_where_no_thread_can_be_had_the_work_is_done_at_once(work, disk, tmp_path, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(later, "_worker", None)
    monkeypatch.setattr(Thread, "start", refuse)
    (path,) = written(tmp_path, "file")
    work.sync(path)
    assert disk.synced == [path, tmp_path]
    work.flush()


def test_a_disk_that_hangs_holds_nobody_who_flushes(work, tmp_path, caplog, monkeypatch):
    hangs, at_disk = Event(), Event()

    def fsync(_):
        at_disk.set()
        hangs.wait(MOST_S)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(later, "_FLUSH_S", 0.05)
    work.sync(*written(tmp_path, "file"))
    try:
        assert at_disk.wait(MOST_S)
        work.flush()
        assert not hangs.is_set()
        (told,) = caplog.records
        assert f"{tmp_path}: the disk has not taken" in told.getMessage()
    finally:
        hangs.set()
        monkeypatch.setattr(later, "_FLUSH_S", MOST_S)
        work.flush()
