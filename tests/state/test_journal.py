import errno
import json
import os
import random
import stat
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from driver.errors import ClaimError, StateError
from driver.model.claims import ClaimState
from driver.model.ids import ClaimUid
from driver.plan.records import to_payload
from driver.state.files import encode
from driver.state.journal import VERSION, Journal
from tests.state.builders import gpu, planned, record, uid
from tests.state.disks import fill, make_read_only, refuse, tiny_disk


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "claims"


def reopened(folder):
    journal = Journal.open(folder)
    assert journal.damaged == ()
    return journal


def file_of(folder, n):
    return folder / f"{uid(n)}.json"


def test_a_new_folder_holds_nothing_and_is_private(folder):
    assert reopened(folder).all() == ()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("state", ClaimState)
def test_a_record_is_the_same_after_a_restart(folder, state):
    kept = replace(record(1, 1, 2, steps=True), state=state)
    journal = reopened(folder)
    journal.put(kept)
    for each in (journal, reopened(folder)):
        assert each.get(uid(1)) == kept
        assert each.all() == (kept,)
    assert stat.S_IMODE(file_of(folder, 1).stat().st_mode) == 0o600


def test_a_record_is_replaced_and_removed_on_disk_and_in_memory(folder):
    journal = reopened(folder)
    journal.put(record(1, 1))
    journal.put(record(1, 2, name="again"))
    for each in (journal, reopened(folder)):
        assert each.all() == (record(1, 2, name="again"),)
        assert each.records_on([gpu(1)]) == ()
    journal.remove(uid(1))
    journal.remove(uid(1))
    for each in (journal, reopened(folder)):
        assert each.get(uid(1)) is None
        assert each.records_on([gpu(2)]) == ()


def test_records_on_cards_are_found_once_each(folder):
    journal = reopened(folder)
    for n, gpus in enumerate([(1,), (1, 2), (3,), (2, 3)]):
        journal.put(record(n, *gpus))
    for each in (journal, reopened(folder)):
        found = [r.claim.uid for r in each.records_on([gpu(2), gpu(1), gpu(9)])]
        assert sorted(found) == [uid(0), uid(1), uid(3)]
        assert each.records_on([]) == ()


def test_unknown_fields_survive_a_rewrite_by_this_version(folder):
    folder.mkdir()
    payload = to_payload(record(1, 1, steps=True)) | {"fromTheFuture": {"a": [1]}}
    file_of(folder, 1).write_bytes(encode(VERSION, payload))
    journal = reopened(folder)
    read = journal.get(uid(1))
    assert read is not None
    journal.put(replace(read, boot_id="another"))
    written = json.loads(file_of(folder, 1).read_bytes().partition(b"\n")[2])
    assert written["fromTheFuture"] == {"a": [1]}


@pytest.mark.parametrize("bad", ["../evil", "", "a/b", "a.b", "x" * 64])
def test_a_uid_that_is_no_file_name_is_refused_before_anything_happens(folder, bad):
    journal = reopened(folder)
    good = record(1, 1)
    with pytest.raises(ClaimError, match="cannot name a claim"):
        journal.put(replace(good, claim=replace(good.claim, uid=ClaimUid(bad))))
    with pytest.raises(ClaimError, match="cannot name a claim"):
        journal.remove(ClaimUid(bad))
    assert journal.get(ClaimUid(bad)) is None
    assert [path.name for path in folder.parent.rglob("*")] == ["claims"]


def test_litter_of_a_cut_write_is_gone_after_the_start(folder):
    reopened(folder).put(record(1, 1))
    (folder / f".{uid(1)}.json.abc.tmp").write_bytes(b"half")
    assert reopened(folder).all() == (record(1, 1),)
    assert list(folder.iterdir()) == [file_of(folder, 1)]


def test_files_that_are_no_records_are_left_alone(folder):
    folder.mkdir()
    (folder / "lock").write_bytes(b"")
    (folder / "notes").mkdir()
    assert reopened(folder).all() == ()
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "notes"]


def test_a_folder_that_cannot_be_read_stops_the_start(tmp_path):
    (tmp_path / "claims").write_bytes(b"")
    with pytest.raises(StateError, match=r"claims was not created: .*--plugin-dir"):
        Journal.open(tmp_path / "claims")


# --- damage


def damage_to(folder, n=1):
    """Open a journal with one bad file beside one good record; what is reported."""
    good = record(99, 1)
    Journal(folder).put(good)
    journal = Journal.open(folder)
    assert journal.all() == (good,)
    (damaged,) = journal.damaged
    assert not os.path.lexists(file_of(folder, n))
    assert damaged.path.parent == folder / "quarantine"
    return damaged


def sample():
    return encode(VERSION, to_payload(record(1, 1, steps=True)))


def edited():
    head, _, body = sample().partition(b"\n")
    return head + b"\n" + body.replace(b'"default"', b'"kube-system"')


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"{}", "does not begin with a header line"),
        (edited(), "was changed or cut short"),
        (encode(VERSION + 1, {}), "format version 2, this driver reads version 1"),
        (encode(VERSION, {"uid": 7}), "journal record"),
        (encode(VERSION, to_payload(record(2, 1))), f"holds the record of claim {uid(2)}"),
    ],
    ids=["empty", "foreign", "edited", "version", "fields", "other claim"],
)
def test_a_damaged_record_is_set_aside_and_reported_and_the_others_count(folder, content, problem):
    folder.mkdir()
    file_of(folder, 1).write_bytes(content)
    damaged = damage_to(folder)
    assert damaged.uid == uid(1)
    assert problem in damaged.problem
    assert damaged.path.read_bytes() == content
    assert damaged.path.name == f"{uid(1)}.json.1"


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link"])
def test_what_is_no_regular_file_is_set_aside(folder, kind):
    folder.mkdir()
    match kind:
        case "folder":
            (file_of(folder, 1) / "below").mkdir(parents=True)
        case "pipe":
            os.mkfifo(file_of(folder, 1))
        case _:
            file_of(folder, 1).symlink_to(folder / "nowhere")
    damaged = damage_to(folder)
    assert damaged.uid == uid(1)
    assert "is not a regular file" in damaged.problem


def test_a_file_that_the_disk_does_not_give_back_is_set_aside(folder, monkeypatch):
    folder.mkdir()
    file_of(folder, 1).write_bytes(sample())
    with monkeypatch.context() as patched:
        patched.setattr(type(folder), "read_bytes", refuse(errno.EIO))
        (damaged,) = Journal.open(folder).damaged
    assert damaged.uid == uid(1)
    assert "cannot be read: Input/output error" in damaged.problem


def test_a_file_whose_name_is_no_uid_is_reported_without_one(folder):
    folder.mkdir()
    (folder / "not a uid.json").write_bytes(sample())
    assert damage_to(folder).uid is None


def test_every_truncation_of_a_record_is_noticed(folder):
    folder.mkdir()
    data = sample()
    for keep in range(len(data)):
        file_of(folder, 1).write_bytes(data[:keep])
        journal = Journal.open(folder)
        assert journal.all() == ()
        (damaged,) = journal.damaged
        damaged.path.unlink()


def test_a_flipped_bit_anywhere_in_a_record_is_noticed(folder):
    folder.mkdir()
    data = sample()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        file_of(folder, 1).write_bytes(flipped)
        journal = Journal.open(folder)
        assert journal.all() == ()
        (damaged,) = journal.damaged
        damaged.path.unlink()


def test_damage_is_reported_at_every_start_until_it_is_settled(folder):
    folder.mkdir()
    for n in (1, 2):
        file_of(folder, n).write_bytes(b"")
    assert [d.uid for d in Journal.open(folder).damaged] == [uid(1), uid(2)]
    journal = Journal.open(folder)
    assert [d.uid for d in journal.damaged] == [uid(1), uid(2)]
    journal.settle(uid(1))
    journal.settle(uid(1))
    for each in (journal, Journal.open(folder)):
        assert [d.uid for d in each.damaged] == [uid(2)]
    journal.put(record(2, 1))  # rebuilt: the process may die before it says so
    assert reopened(folder).all() == (record(2, 1),)


def test_damage_of_the_same_claim_again_is_kept_beside_the_first(folder):
    folder.mkdir()
    for content in (b"1", b"22", b"333"):
        file_of(folder, 1).write_bytes(content)
        journal = Journal.open(folder)
        journal.settle(uid(1))
    kept = sorted((path.name, path.read_bytes()) for path in (folder / "quarantine").iterdir())
    names = [f"{uid(1)}.json.{n}.settled" for n in (1, 2, 3)]
    assert kept == list(zip(names, (b"1", b"22", b"333"), strict=True))


def test_what_somebody_took_out_of_the_quarantine_is_settled(folder):
    folder.mkdir()
    file_of(folder, 1).write_bytes(b"")
    journal = Journal.open(folder)
    journal.damaged[0].path.unlink()
    journal.settle(uid(1))
    assert journal.damaged == ()


def test_strange_files_in_the_quarantine_are_not_reported(folder):
    (folder / "quarantine").mkdir(parents=True)
    for name in ("README", "a b.json.1", "node.json.1.settled"):
        (folder / "quarantine" / name).write_bytes(b"")
    assert reopened(folder).all() == ()


def test_damage_that_cannot_be_marked_as_settled_is_still_reported(folder, monkeypatch):
    folder.mkdir()
    file_of(folder, 1).write_bytes(b"")
    journal = Journal.open(folder)
    monkeypatch.setattr(os, "rename", refuse(errno.EIO))
    with pytest.raises(StateError, match="cannot be marked as dealt with"):
        journal.settle(uid(1))
    assert [d.uid for d in journal.damaged] == [uid(1)]


def test_damage_on_a_read_only_disk_is_reported_where_it_lies(tmp_path):
    with tiny_disk(tmp_path / "claims") as folder:
        file_of(folder, 1).write_bytes(b"")
        make_read_only(folder)
        (damaged,) = Journal.open(folder).damaged
        assert damaged.path == file_of(folder, 1)
        assert "is empty; wanted" in damaged.problem
        assert damaged.problem.endswith(f"moved to {folder}/quarantine: Read-only file system")


def test_settling_what_was_never_moved_spares_the_record_written_since(folder, monkeypatch):
    folder.mkdir()
    file_of(folder, 1).write_bytes(b"")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse(errno.EIO))
        journal = Journal.open(folder)
    journal.put(record(1, 1))
    journal.settle(uid(1))
    assert journal.damaged == ()
    assert reopened(folder).all() == (record(1, 1),)


# --- disks that refuse


def test_on_a_full_disk_memory_and_file_keep_the_earlier_record(tmp_path):
    with tiny_disk(tmp_path / "claims") as folder:
        journal = reopened(folder)
        journal.put(record(1, 1))
        fill(folder)
        for change in (record(1, 2), record(2, 2)):
            with pytest.raises(StateError, match=r"\.json was not written: .*ENOSPC"):
                journal.put(change)
        for each in (journal, reopened(folder)):
            assert each.all() == (record(1, 1),)
        journal.remove(uid(1))
        assert reopened(folder).all() == ()


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_when_the_disk_refuses_memory_and_file_keep_the_earlier_record(
    folder, monkeypatch, code, steps
):
    journal = reopened(folder)
    journal.put(record(1, 1, steps=steps))
    with monkeypatch.context() as patched:
        for call in ("replace", "rename", "unlink"):
            patched.setattr(os, call, refuse(code))
        with pytest.raises(StateError, match=errno.errorcode[code]):
            journal.put(record(1, 2, steps=steps))
        with pytest.raises(StateError, match=errno.errorcode[code]):
            journal.remove(uid(1))
    for each in (journal, reopened(folder)):
        assert each.all() == (record(1, 1, steps=steps),)
        assert each.records_on([gpu(2)]) == ()


def test_a_record_is_remembered_only_once_it_is_on_disk(folder, monkeypatch):
    journal = reopened(folder)
    journal.flush()  # of other tests' folders: one thread works for all
    seen = []
    real = os.fsync

    def look(fd):
        seen.append((journal.get(uid(1)), journal.records_on([gpu(1)])))
        real(fd)

    monkeypatch.setattr(os, "fsync", look)
    begun = planned(record(1, 1, steps=True))
    journal.put(begun)
    journal.remove(uid(1))
    put = (begun, (begun,))
    assert seen == [(None, ()), (None, ()), put]


def test_a_further_share_waits_for_no_disk_and_its_own_steps_do(folder, monkeypatch):
    """Those of the first were done for others, whose records last."""
    journal = reopened(folder)
    journal.flush()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal.put(record(1, 1, steps=True))
    assert synced == []
    journal.flush()
    assert len(synced) == 2
    journal.put(replace(record(1, 1, steps=True), boot_id="other"))
    assert len(synced) == 4


@pytest.mark.parametrize("steps", [False, True])
def test_all_of_it_reaches_the_disk(folder, monkeypatch, steps):
    """With steps before ``put`` and ``remove`` return, without moments later."""
    journal = reopened(folder)
    journal.flush()  # of other tests' folders: one thread works for all
    synced = []
    real = os.fsync

    def fsync(fd):
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    journal.put(planned(record(1, 1, steps=steps)))
    assert bool(synced) is steps
    journal.flush()
    assert synced[0].name.strip(".").startswith(uid(1))
    assert synced[1] == folder
    synced.clear()
    journal.remove(uid(1))
    assert bool(synced) is steps
    assert not file_of(folder, 1).exists()
    journal.flush()
    assert synced == [folder]
    assert [*folder.iterdir()] == []


def test_a_disk_that_fails_later_is_told_of_and_the_next_change_is_tried(
    folder, monkeypatch, caplog
):
    journal = reopened(folder)
    journal.flush()  # of other tests' folders: one thread works for all
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse(errno.EIO))
        journal.put(record(1, 1))
        journal.flush()
    (told,) = caplog.records
    assert f"{uid(1)}.json was not synced" in told.getMessage()
    assert "power loss" in told.getMessage()
    journal.put(record(2, 2))
    journal.flush()
    assert len(caplog.records) == 1
    assert {each.claim.uid for each in reopened(folder).all()} == {uid(1), uid(2)}


def test_a_record_that_is_removed_before_it_is_synced_is_no_matter(folder, caplog):
    journal = reopened(folder)
    for n in range(20):
        journal.put(record(n, 1))
        journal.remove(uid(n))
        file_of(folder, n).unlink(missing_ok=True)
        journal.put(record(n, 1))
        file_of(folder, n).unlink()
        journal.remove(uid(n))  # somebody else took the file
    journal.flush()
    assert not caplog.records
    assert [*folder.iterdir()] == []


# --- threads


def test_threads_that_put_remove_and_read_leave_memory_and_disk_the_same(folder):
    journal = reopened(folder)

    def hammer(seed):
        dice = random.Random(seed)  # noqa: S311
        for turn in range(60):
            n = dice.randrange(12)
            if dice.random() < 0.3:
                journal.remove(uid(n))
            else:
                journal.put(record(n, dice.randrange(4), 4, name=f"{seed}-{turn}"))
            found = {r.claim.uid for r in journal.records_on([gpu(4)])}
            assert found <= {uid(m) for m in range(12)}
            read = journal.get(uid(n))
            assert read is None or read.claim.uid == uid(n)
            assert len(journal.all()) <= 12

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(hammer, seed) for seed in range(8)]:
            done.result()

    def by_uid(records):
        return sorted(records, key=lambda r: r.claim.uid)

    on_disk = by_uid(reopened(folder).all())
    assert on_disk == by_uid(journal.all()) == by_uid(journal.records_on([gpu(4)]))
    for card in map(gpu, range(4)):
        wanted = [r for r in on_disk if card in r.gpus]
        assert by_uid(journal.records_on([card])) == wanted


def test_a_slow_disk_of_one_claim_keeps_no_other_claim_waiting(folder, monkeypatch):
    journal = reopened(folder)
    other = next(n for n in range(2, 1000) if hash(uid(n)) % 64 != hash(uid(1)) % 64)
    at_disk, go_on = Event(), Event()
    real = os.replace

    def slow(source, target):
        if uid(1) in str(target):
            at_disk.set()
            assert go_on.wait(30), "the other claim was never written"
        real(source, target)

    monkeypatch.setattr(os, "replace", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(journal.put, record(1, 1))
        assert at_disk.wait(30)
        journal.put(record(other, 2))
        assert journal.all() == (record(other, 2),)
        go_on.set()
        first.result()
    assert {r.claim.uid for r in journal.all()} == {uid(1), uid(other)}


def test_two_changes_of_one_claim_never_cross_between_disk_and_memory(folder, monkeypatch):
    """A removal that comes while a record is on disk but not yet in memory waits for it."""
    journal = reopened(folder)
    journal.flush()  # of other tests' folders: one thread works for all
    removals: list[Future[None]] = []
    real = os.fsync

    def fsync(fd):
        real(fd)
        if file_of(folder, 1).exists() and not removals:
            removals.append(pool.submit(journal.remove, uid(1)))
            wait(removals, timeout=0.2)  # let it go as far as it can

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(os, "fsync", fsync)
        journal.put(planned(record(1, 1, steps=True)))
        removals[0].result()
    assert journal.all() == reopened(folder).all() == ()
