import errno
import os

import pytest

from driver.errors import StateError
from driver.state.files import encode
from driver.state.known import VERSION, Known
from tests.state.disks import refuse

HEALTH = {"health": {"GPU-1": ["xid 79"]}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "node.json"


def test_nothing_is_known_at_first(path):
    known = Known(path)
    assert known.load() == {}
    assert known.damaged is None


def test_what_was_saved_is_known_after_a_restart(path):
    assert Known(path).save(HEALTH)
    known = Known(path)
    assert known.load() == HEALTH
    assert not known.save(HEALTH)
    assert known.save({})
    assert Known(path).load() == {}


def test_only_a_change_is_written(path):
    known = Known(path)
    known.save(HEALTH)
    before = path.stat().st_ino
    assert not known.save(HEALTH)
    assert path.stat().st_ino == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (encode(VERSION, HEALTH)[:-2], "cut short"),
        (encode(VERSION + 1, HEALTH), "format version 2, this driver reads version 1"),
    ],
)
def test_a_damaged_file_is_set_aside_reported_and_does_not_stop_the_start(path, content, problem):
    path.parent.mkdir()
    path.write_bytes(content)
    known = Known(path)
    assert known.load() == {}
    assert known.damaged is not None
    assert problem in known.damaged.problem
    assert known.damaged.path == path.parent / "quarantine" / "node.json.1"
    assert known.damaged.path.read_bytes() == content
    assert known.save({})
    assert known.load() == {}
    assert known.damaged is None


def test_after_a_failed_write_the_next_save_writes_again(path, monkeypatch):
    known = Known(path)
    known.save({})
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse(errno.ENOSPC))
        with pytest.raises(StateError, match="ENOSPC"):
            known.save(HEALTH)
    assert known.save({})
    assert known.save(HEALTH)
    assert Known(path).load() == HEALTH
