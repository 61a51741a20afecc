"""The stand-in says what the real control program says, word for word."""

import os
import shutil
import stat

import pytest

from mps.standin.install import install
from mps.testing.real import SUITES, UnavailableError, real_program
from tests.mps.transcripts import Speaker


@pytest.fixture(params=sorted(SUITES))
def pair(request, short_root):
    """The real program and the stand-in of one version."""
    if os.geteuid() != 0:
        pytest.skip("some answers differ for other users than root")
    try:
        real = real_program(request.param)
    except UnavailableError as error:
        pytest.skip(f"no real control program {request.param}: {error}")
    ours = install(short_root / "bin", request.param)
    speakers = Speaker(real, short_root / "real"), Speaker(ours, short_root / "ours")
    yield speakers
    for one in speakers:
        one.quit()


def test_the_same_conversation_has_the_same_answers(pair):
    real, ours = (list(one.conversation()) for one in pair)
    assert [(one.asked, one.status, one.out, one.err) for one in ours] == [
        (one.asked, one.status, one.out, one.err) for one in real
    ]


def test_the_same_files_are_there_while_it_runs_and_after_it_quit(pair):
    def files(folder):
        found = {path.name: path.lstat().st_mode for path in folder.iterdir()}
        return {name: stat.filemode(mode) for name, mode in sorted(found.items())}

    for one in pair:
        one.daemon()
    assert files(pair[1].pipe) == files(pair[0].pipe)
    assert [one.quit().status for one in pair] == [0, 0]
    assert files(pair[1].pipe) == files(pair[0].pipe)


def test_the_log_tells_the_same(pair):
    for one in pair:
        one.daemon()
        one.ask("set_default_active_thread_percentage 50")
        one.ask("get_default_device_pinned_mem_limit 0")
        one.quit()
    real, ours = (one.log_texts() for one in pair)
    wanted = [line for line in real if not line.startswith(("Accepting", "NEW UI", "UI closed"))]
    assert [line for line in wanted if line not in ours] == []


@pytest.mark.parametrize("length", [87, 88])
def test_a_pipe_directory_may_have_87_bytes(pair, length):
    results = []
    for one in pair:
        folder = one.folder / ("x" * (length - len(str(one.folder)) - 1))
        done = one.run(["-d"], CUDA_MPS_PIPE_DIRECTORY=str(folder))
        results.append((done.status, done.out, done.err))
        one.run(said="quit", CUDA_MPS_PIPE_DIRECTORY=str(folder))
    assert results == [(int(length > 87), "", "")] * 2


def test_a_missing_parent_is_told_of(pair):
    missing = {name: "/nope/x" for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")}
    real, ours = (one.run(["-d"], **missing) for one in pair)
    assert (ours.status, ours.out) == (real.status, real.out)
    assert real.status == 1


def test_the_folder_of_the_cache_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("ALIQUOT_E2E_CACHE", str(tmp_path))
    program = tmp_path / "mps" / "535" / "usr/bin/nvidia-cuda-mps-control"
    program.parent.mkdir(parents=True)
    program.touch()
    assert real_program("535") == program


def test_a_machine_without_apt_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("ALIQUOT_E2E_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="apt-get, which is not here"):
        real_program("535")
