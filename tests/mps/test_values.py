"""Protocol values, paths, limits and logs: nothing is started here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mps import files, layout, limits
from mps.controllog import KEPT, LARGEST, ControlLog, News, cut_to, news_in
from mps.frontend import Program
from mps.node import pause_s
from mps.proc import Process
from mps.protocol import (
    MIB,
    CardSpec,
    CardState,
    MpsRefusedError,
    Namespace,
    SupervisorInfo,
    as_data,
    info_of,
    line,
    message_of,
    namespace_of,
    spec_of,
    state_of,
)
from mps.state import Record, Store

GPU = "GPU-31dc0ed3-1111-2222-3333-444455556666"
SPEC = CardSpec(GPU, 14336 * MIB, 25, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpu": "GPU-1"}, "is not the UUID of a GPU"),
        ({"gpu": f"{GPU}\n"}, "is not the UUID of a GPU"),
        ({"gpu": "../../etc"}, "is not the UUID of a GPU"),
        ({"gpu": 7}, "is not the UUID of a GPU"),
        ({"memory_limit": MIB + 1}, "wanted whole MiB"),
        ({"memory_limit": 0}, "wanted whole MiB"),
        ({"memory_limit": True}, "wanted whole MiB"),
        ({"memory_limit": "1G"}, "wanted whole MiB"),
        ({"compute_percent": 0}, "wanted 1 to 100"),
        ({"compute_percent": 101}, "wanted 1 to 100"),
        ({"compute_percent": 12.5}, "wanted 1 to 100"),
        ({"protocol": 1}, "wanted 2 or 3"),
    ],
)
def test_a_spec_that_the_program_would_store_otherwise_is_refused(change, said):
    with pytest.raises(MpsRefusedError, match=said):
        replace(SPEC, **change)


@pytest.mark.parametrize("name", ["", "a-b", "A", "a/b", "..", "x" * 65, "default", 3, "a\n"])
def test_a_namespace_is_named_as_the_program_allows(name):
    with pytest.raises(MpsRefusedError, match="cannot name a namespace"):
        Namespace(name, None, None)


def test_values_survive_the_socket():
    state = CardState(SPEC, Path("/run/x/pipe"), Path("/run/x/shm"), 7, 1.5, True, None, 2)
    info = SupervisorInfo(1, 2.5, "/usr/bin/x", "580", (2, 3), True, None)
    claim = Namespace("a_0", None, 30)
    for value, back in (
        (SPEC, spec_of),
        (state, state_of),
        (replace(state, shm=None), state_of),
        (info, info_of),
        (claim, namespace_of),
    ):
        sent = message_of(line(as_data(value)))
        assert back(sent) == value


@pytest.mark.parametrize("data", [b"[]", b"nonsense", b"", b"\xff"])
def test_a_message_is_an_object(data):
    with pytest.raises(ValueError, match=r".+"):
        message_of(data)


def test_cards_that_begin_alike_have_folders_of_their_own():
    other = GPU[:-1] + "7"
    paths = {layout.card_paths(Path("/run/aliquot-mps"), gpu).folder for gpu in (GPU, other)}
    assert len(paths) == 2
    assert {path.name[:9] for path in paths} == {"31dc0ed3-"}


def test_pipe_directories_that_are_too_long_are_refused():
    long = Path("/" + "x" * 70)
    with pytest.raises(MpsRefusedError, match=r"has 94 bytes.* --run-dir a shorter path"):
        layout.card_paths(long, GPU)
    paths = layout.card_paths(Path("/run/aliquot-mps"), GPU)
    assert len(str(paths.namespace("c" * 36 + "_0"))) <= layout.LONGEST_PIPE
    with pytest.raises(MpsRefusedError, match="has 109 bytes"):
        paths.namespace("c" * 64)


def test_supervisors_of_one_host_keep_their_cgroups_apart():
    ours = layout.card_paths(Path("/run/aliquot-mps"), GPU)
    theirs = layout.card_paths(Path("/run/other"), GPU)
    assert ours.group == ours.id
    assert theirs.group.startswith(f"{ours.id}-")


@pytest.mark.parametrize(
    ("mib", "shown", "same"),
    [
        (14336, "14G", True),
        (1536, "1G", True),  # cut down by the program
        (1536, "1536M", True),
        (512, "512M", True),
        (512, "1M", False),
        (14336, "", False),
        (14336, "14", False),
        (None, "", True),
        (None, "-", True),
        (None, "1G", False),
    ],
)
def test_a_memory_limit_is_compared_as_the_program_shows_it(mib, shown, same):
    assert limits.same_memory(None if mib is None else mib * MIB, shown) is same


@pytest.mark.parametrize(
    ("percent", "shown", "same"),
    [
        (25, "25.0", True),
        (25, "25", True),
        (25, "100.0", False),
        (None, "100.0", True),
        (None, "-", True),
        (None, "50.0", False),
        (25, "nonsense", False),
    ],
)
def test_a_percentage_is_compared_by_value(percent, shown, same):
    assert limits.same_percent(percent, shown, unset=100.0) is same


def test_what_differs_is_told_with_what_was_wanted():
    assert limits.differing(SPEC, "14G", "25.0") is None
    assert limits.differing(SPEC, "", "100.0") == (
        "memory limit unset, wanted 14336M; thread percentage 100.0, wanted 25"
    )
    free = replace(SPEC, memory_limit=None, compute_percent=None)
    assert limits.differing(free, "1G", "50.0") == (
        "memory limit 1G, wanted none; thread percentage 50.0, wanted none"
    )


def test_servers_that_start_early_have_the_limits_too():
    assert limits.limits_environment(SPEC) == {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=14336M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    assert limits.limits_environment(CardSpec(GPU, None, None, 2)) == {}
    assert limits.limits_environment(replace(SPEC, protocol=3)) == {}


def test_the_pauses_between_starts_grow_to_a_minute():
    assert [pause_s(n) for n in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 32, 60]
    assert pause_s(1000) == 60


@pytest.mark.parametrize(
    ("text", "news"),
    [
        ("", News()),
        ("[x Control 1] Server 12 exited with status 0", News()),
        ("[x] Server 12 exited with status 1", News("MPS server 12 exited with status 1")),
        ("[x] Server 12 exited with status 1\n[x] NEW SERVER 13: Ready", News(ready=True)),
        (
            "[x] NEW SERVER 12: Ready\n[x] Server 12 exited with status 9",
            News("MPS server 12 exited with status 9"),
        ),
    ],
)
def test_the_log_tells_of_servers_that_failed(text, news):
    assert news_in(text) == news


def test_the_log_is_read_on_from_where_it_was(tmp_path):
    path = tmp_path / "control.log"
    log = ControlLog(path)
    assert log.news() == News()
    path.write_text("Server 1 exited with status 1\n")
    log.to_end()
    assert log.news() == News()
    with path.open("a") as file:
        file.write("Server 2 exited with sta")
        file.flush()
        assert log.news() == News()
        file.write("tus 1\n")
        file.flush()
        assert log.news().failed == "MPS server 2 exited with status 1"
    assert log.news() == News()
    path.write_text("")  # cut by hand
    assert log.news() == News()


def test_a_log_that_grows_is_cut_and_its_end_is_kept(tmp_path):
    path = tmp_path / "control.log"
    log = ControlLog(path)
    with path.open("a") as file:
        for n in range(LARGEST // 16):
            file.write(f"line {n:>12}\n")
        file.flush()
        assert path.stat().st_size > LARGEST
        log.news()
        assert path.stat().st_size == 0
        file.write("Server 3 exited with status 1\n")  # the writer goes on at the new end
    assert path.stat().st_size < 100
    assert log.news().failed == "MPS server 3 exited with status 1"
    kept = tmp_path / "control.log.1"
    assert kept.stat().st_size == KEPT
    assert kept.read_text().endswith(f"line {LARGEST // 16 - 1:>12}\n")


def test_a_log_of_others_is_emptied(tmp_path):
    path = tmp_path / "server.log"
    cut_to(path, 10)
    path.write_text("x" * 10)
    cut_to(path, 10)
    assert path.stat().st_size == 10
    path.write_text("x" * 11)
    cut_to(path, 10)
    assert path.stat().st_size == 0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b"{}", "changed or cut short"),
        (b'{"version":2,"sha256":""}\n{}\n', "another version"),
        (b"\xff\xfe", "changed or cut short"),
        (b"[]\n", "changed or cut short"),
    ],
)
def test_a_damaged_state_file_is_set_aside_with_the_reason(tmp_path, data, why):
    store = Store(tmp_path)
    store.open()
    store.put("good", Record(SPEC, "boot", Process(1, 2), {}))
    (tmp_path / "bad.json").write_bytes(data)
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "bad.json.1").touch()
    found, problems = store.open()
    assert list(found) == ["good"]
    assert why in problems[0]
    assert problems[0].endswith("bad.json.2")
    assert (tmp_path / "quarantine" / "bad.json.2").read_bytes() == data
    assert store.open() == (found, ())


def test_a_record_is_what_was_written(tmp_path):
    store = Store(tmp_path / "deep" / "state")
    store.open()
    claim = Namespace("a_0", 5 * MIB, None)
    record = Record(SPEC, "boot", Process(7, 9), {"a_0": claim}, True, 3)
    store.put("card", record)
    assert store.open() == ({"card": record}, ())
    assert (tmp_path / "deep" / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep" / "state" / "card.json").stat().st_mode & 0o777 == 0o600
    assert record.without_namespace("a_0").claims == {}
    store.remove("card")
    store.remove("card")
    assert store.open() == ({}, ())


@pytest.mark.parametrize(
    "payload", [{}, {"spec": {"gpu": 1}}, {"daemon": None, "namespaces": [1]}]
)
def test_a_record_of_something_else_is_damaged(tmp_path, payload):
    files.write(tmp_path / "x.json", payload)
    found, problems = Store(tmp_path).open()
    assert found == {}
    assert "it lacks or mistakes" in problems[0]


def test_a_state_file_that_is_no_file_is_not_waited_for(tmp_path):
    (tmp_path / "x.json").mkdir()
    _, problems = Store(tmp_path).open()
    assert "no regular file" in problems[0]


def test_what_cannot_be_moved_away_is_left(tmp_path):
    (tmp_path / "x.json").touch()
    (tmp_path / "quarantine").touch()  # not a folder
    assert files.set_aside(tmp_path / "x.json") == tmp_path / "x.json"


def test_a_program_that_cannot_run_says_so(tmp_path):
    program = Program(Path("/x"), tmp_path)
    assert "is not there; install" in (program.missing or "")
    (tmp_path / "x").write_text("")
    assert "is not executable" in (program.missing or "")
    (tmp_path / "x").chmod(0o755)
    assert program.missing is None


def test_a_state_file_is_json_for_people(tmp_path):
    store = Store(tmp_path)
    store.open()
    store.put("card", Record(SPEC, "boot", namespaces={}))
    head, body = (tmp_path / "card.json").read_text().splitlines()
    assert json.loads(head)["version"] == files.VERSION
    assert json.loads(body)["spec"]["gpu"] == GPU
