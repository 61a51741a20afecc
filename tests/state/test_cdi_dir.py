import errno
import json
import os
import shutil
import stat

import pytest

from driver.errors import ClaimError, StateError
from driver.state.cdi_dir import CdiDir
from tests.state.builders import uid
from tests.state.disks import fill, make_read_only, refuse, tiny_disk

PREFIX = "gpu.example.com-claim_"
SPEC = {"cdiVersion": "0.5.0", "kind": "gpu.example.com/claim", "devices": []}
NAME = uid(1)


def file_of(folder, name=NAME):
    return folder / f"{PREFIX}{name}.json"


def test_a_spec_is_written_once_and_again_only_when_it_differs(tmp_path):
    cdi = CdiDir(tmp_path, PREFIX)
    assert cdi.ensure(NAME, SPEC)
    before = file_of(tmp_path).stat().st_ino
    assert not cdi.ensure(NAME, dict(reversed(SPEC.items())))
    assert file_of(tmp_path).stat().st_ino == before
    assert cdi.ensure(NAME, SPEC | {"annotations": {}})
    assert json.loads(file_of(tmp_path).read_bytes()) == SPEC | {"annotations": {}}


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_a_spec_that_somebody_changed_or_a_power_loss_emptied_is_written_again(tmp_path, content):
    cdi = CdiDir(tmp_path, PREFIX)
    cdi.ensure(NAME, SPEC)
    file_of(tmp_path).write_bytes(content)
    assert cdi.ensure(NAME, SPEC)
    assert json.loads(file_of(tmp_path).read_bytes()) == SPEC


def test_a_spec_that_somebody_deleted_with_its_folder_is_written_again(tmp_path):
    folder = tmp_path / "run" / "cdi"
    cdi = CdiDir(folder, PREFIX)
    cdi.ensure(NAME, SPEC)
    shutil.rmtree(folder)
    cdi.remove(NAME)
    assert cdi.ensure(NAME, SPEC)
    assert file_of(folder).exists()


def test_runtimes_see_nothing_of_a_file_that_comes_to_be(tmp_path, monkeypatch):
    """But the one rename: the folder is the only thing of it that they watch."""
    cdi = CdiDir(tmp_path, PREFIX)
    cdi.ensure(NAME, SPEC)
    (drafts,) = (path for path in tmp_path.iterdir() if path.is_dir())
    moved = []
    monkeypatch.setattr(os, "replace", lambda *paths: moved.append(paths))
    before = tmp_path.stat().st_mtime_ns
    cdi.ensure(uid(2), SPEC)
    ((source, target),) = moved
    assert tmp_path.stat().st_mtime_ns == before
    assert (os.path.dirname(source), target) == (str(drafts), file_of(tmp_path, uid(2)))


def test_runtimes_of_other_users_can_read_folder_and_file(tmp_path):
    before = os.umask(0o077)
    try:
        CdiDir(tmp_path / "cdi", PREFIX).ensure(NAME, SPEC)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cdi").stat().st_mode) == 0o755
    assert stat.S_IMODE(file_of(tmp_path / "cdi").stat().st_mode) == 0o644


def test_removal_can_be_repeated_and_touches_no_other_file(tmp_path):
    cdi = CdiDir(tmp_path, PREFIX)
    for n in (1, 2):
        cdi.ensure(uid(n), SPEC)
    cdi.remove(NAME)
    cdi.remove(NAME)
    assert list(tmp_path.glob("*.json")) == [file_of(tmp_path, uid(2))]


def test_strays_are_our_own_files_that_nobody_needs(tmp_path):
    cdi = CdiDir(tmp_path, PREFIX)
    for n in (3, 1, 2):
        cdi.ensure(uid(n), SPEC)
    for foreign in ("nvidia.yaml", "other.json", f"{PREFIX}.json", f"{PREFIX}a.b.json", "cdi"):
        (tmp_path / foreign).write_bytes(b"")
    assert cdi.strays({uid(2)}) == (uid(1), uid(3))
    assert CdiDir(tmp_path / "none", PREFIX).strays(set()) == ()


def test_litter_of_ours_is_cleared_and_that_of_others_is_not(tmp_path):
    drafts = tmp_path / f".{PREFIX}drafts"
    drafts.mkdir()
    others = tmp_path / ".nvidia.json.1.tmp"
    for path in (tmp_path / f".{PREFIX}x.json.1.tmp", drafts / ".y.json.1.tmp", others):
        path.write_bytes(b"")
    CdiDir(tmp_path, PREFIX).clear_litter()
    assert set(tmp_path.iterdir()) == {others, drafts}
    assert list(drafts.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "a.json"])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path, name):
    cdi = CdiDir(tmp_path / "cdi", PREFIX)
    with pytest.raises(ClaimError, match="cannot name a claim"):
        cdi.ensure(name, SPEC)
    with pytest.raises(ClaimError, match="cannot name a claim"):
        cdi.remove(name)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_told_with_the_setting_to_change(tmp_path):
    with tiny_disk(tmp_path / "cdi") as folder:
        cdi = CdiDir(folder, PREFIX)
        cdi.ensure(NAME, SPEC)
        make_read_only(folder)
        assert not cdi.ensure(NAME, SPEC)
        with pytest.raises(
            StateError, match=r"not written: .*EROFS.*read-write.*--cdi-dir"
        ) as caught:
            cdi.ensure(uid(2), SPEC)
        assert str(folder) in str(caught.value)
        with pytest.raises(StateError, match=r"not removed: .*EROFS.*read-write.*--cdi-dir"):
            cdi.remove(NAME)
        cdi.remove(uid(2))


def test_a_read_only_folder_is_told_where_none_can_be_mounted(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", refuse(errno.EROFS))
    with pytest.raises(StateError, match=r"not written: .*EROFS.*read-write.*--cdi-dir"):
        CdiDir(tmp_path, PREFIX).ensure(NAME, SPEC)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_folder_keeps_the_old_spec(tmp_path):
    with tiny_disk(tmp_path / "cdi") as folder:
        cdi = CdiDir(folder, PREFIX)
        cdi.ensure(NAME, SPEC)
        fill(folder)
        with pytest.raises(StateError, match=r"ENOSPC.*--cdi-dir"):
            cdi.ensure(NAME, SPEC | {"annotations": {}})
        assert not cdi.ensure(NAME, SPEC)
        cdi.remove(NAME)
        assert cdi.strays(set()) == ()
