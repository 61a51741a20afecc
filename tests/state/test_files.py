import errno
import json
import os
import stat

import pytest

from driver.errors import ClaimError, StateError
from driver.state.files import (
    decode,
    encode,
    list_folder,
    make_folder,
    remove,
    remove_litter,
    safe_name,
    write_atomically,
)
from tests.state.disks import fill, make_read_only, refuse, tiny_disk

PAYLOAD = {"b": 1, "a": [2, "ä\n"], "deep": {"x": None}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "record.json"


def test_what_was_encoded_is_decoded(path):
    assert decode(encode(3, PAYLOAD), path) == (3, PAYLOAD)


def test_the_first_line_is_readable_json_with_version_and_digest(path):
    header = json.loads(encode(3, PAYLOAD).splitlines()[0])
    assert header["version"] == 3
    assert len(header["sha256"]) == 64


def test_every_truncation_is_noticed(path):
    data = encode(1, PAYLOAD)
    for keep in range(len(data)):
        with pytest.raises(StateError, match=r"record\.json"):
            decode(data[:keep], path)


def test_every_flipped_bit_is_noticed(path):
    data = encode(1, PAYLOAD)
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(StateError, match=r"record\.json"):
                decode(bytes(damaged), path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b"{}\n{}", "does not begin with a header line"),
        (b"[" * 100_000, "does not begin with a header line"),
        (b"\xff\xfe", "does not begin with a header line"),
        (b'{"version":1,"sha256":"0"}\n{}', "was changed or cut short"),
        (encode(1, PAYLOAD) + b"\n", "was changed or cut short"),
        (encode(1, [1]), "holds a list; wanted an object"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_with_a_file_is_said(path, data, problem):
    with pytest.raises(StateError, match=problem):
        decode(data, path)


def test_a_write_replaces_the_bytes_and_sets_the_mode_whatever_the_umask(path):
    before = os.umask(0o077)
    try:
        write_atomically(path, b"old")
        write_atomically(path, b"new", mode=0o644)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_data_reach_the_disk_before_the_name_and_the_name_before_success(path, monkeypatch):
    calls = []

    def spy(name):
        real = getattr(os, name)

        def call(*args):
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(os, name, call)

    spy("fsync")
    spy("replace")
    write_atomically(path, b"x")
    assert calls == ["fsync", "replace", "fsync"]
    write_atomically(path, b"x", durable=False)
    assert calls[3:] == ["replace"]


@pytest.mark.parametrize("call", ["replace", "fsync", "fchmod"])
def test_a_failed_write_keeps_the_old_file_and_no_litter(path, monkeypatch, call):
    write_atomically(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse(errno.EIO))
        with pytest.raises(StateError, match=r"record\.json was not written: .*EIO.*--plugin-dir"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_without_a_number_is_told_in_its_own_words(path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("odd disk")))
    with pytest.raises(StateError, match="odd disk"):
        write_atomically(path, b"new")


@pytest.mark.parametrize(
    ("code", "hint"),
    [(errno.ENOSPC, "free space"), (errno.EROFS, "mount that file system read-write")],
)
def test_the_error_of_a_disk_names_path_cause_and_what_to_change(path, monkeypatch, code, hint):
    monkeypatch.setattr(os, "replace", refuse(code))
    with pytest.raises(StateError) as caught:
        write_atomically(path, b"new", setting="--other-dir")
    text = str(caught.value)
    assert str(path) in text
    assert errno.errorcode[code] in text
    assert hint in text
    assert "--other-dir" in text


def test_a_full_disk_keeps_the_old_file_and_no_litter(tmp_path):
    with tiny_disk(tmp_path / "disk") as disk:
        path = disk / "record.json"
        write_atomically(path, b"old")
        filler = fill(disk)
        with pytest.raises(StateError, match=r"record\.json was not written: .*ENOSPC"):
            write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert set(disk.iterdir()) == {path, filler}
        remove(path)
        assert not path.exists()


def test_a_read_only_disk_is_told_for_writes_removals_and_folders(tmp_path):
    with tiny_disk(tmp_path / "disk") as disk:
        path = disk / "record.json"
        write_atomically(path, b"old")
        make_read_only(disk)
        with pytest.raises(StateError, match=r"record\.json was not written: .*EROFS"):
            write_atomically(path, b"new")
        with pytest.raises(StateError, match=r"record\.json was not removed: .*EROFS"):
            remove(path)
        with pytest.raises(StateError, match=r"below was not created: .*EROFS"):
            make_folder(disk / "below", 0o700)
        remove(disk / "never-there", durable=False)
        assert path.read_bytes() == b"old"


def test_removal_reaches_the_disk_and_can_be_repeated(path, monkeypatch):
    synced: list[None] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(real(fd)))
    path.write_bytes(b"x")
    remove(path)
    remove(path)
    assert not path.exists()
    assert len(synced) == 2
    remove(path, durable=False)
    assert len(synced) == 2


def test_a_folder_gets_its_mode_once_and_keeps_what_the_admin_gave_it(tmp_path):
    folder = tmp_path / "a" / "b"
    make_folder(folder, 0o700)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o750)
    make_folder(folder, 0o700)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_litter_of_a_cut_write_is_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "unlink", refuse(errno.EIO))
    monkeypatch.setattr(os, "replace", refuse(errno.EIO))
    with pytest.raises(StateError):
        write_atomically(tmp_path / "a.json", b"x")
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    for name in ("a.json", ".hidden", "x.tmp", ".b.json.1.tmp"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".a.folder.tmp").mkdir()
    remove_litter(tmp_path, "a.")
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"a.json", ".hidden", "x.tmp", ".b.json.1.tmp", ".a.folder.tmp"}


def test_a_missing_folder_lists_as_empty_and_an_unreadable_one_is_an_error(tmp_path):
    assert list_folder(tmp_path / "none") == ()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateError, match="file was not listed"):
        list_folder(tmp_path / "file")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "a.b", "-a", "a-", "a\n", "a\0", "ä", "a" * 64]
)
def test_a_name_that_could_leave_the_folder_is_refused(name):
    with pytest.raises(ClaimError, match=r"metadata\.uid"):
        safe_name(name)


@pytest.mark.parametrize("name", ["a", "0f3e7a52-6b1c-4a53-9f44-2f6f0e5d8c11", "A" * 63])
def test_a_uid_is_a_safe_name(name):
    assert safe_name(name) == name
