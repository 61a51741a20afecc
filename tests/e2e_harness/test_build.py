"""What decides which programs are built, and the texts when they cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster import build, packages
from e2e.cluster.errors import SetupError
from e2e.cluster.targets import (
    EXTRAS,
    NODE_TARGETS,
    RELEASES,
    TOOLS,
    Target,
    cache_folder,
    kubernetes,
)
from mps.testing.real import UnavailableError


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "go.mod").write_text("module x\n")
    (folder / "go.sum").write_text("")
    return Target("thing-1", folder, {"thing": "example.org/thing"})


def test_the_digest_is_the_same_for_the_same_inputs(target):
    assert target.digest() == replace(target).digest()
    assert len(target.digest()) == 12


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_the_digest_follows_the_pinned_modules(target, file):
    before = target.digest()

    (target.folder / file).write_text("something else\n")

    assert target.digest() != before


@pytest.mark.parametrize(
    "change",
    [
        {"toolchain": "go1.27.3"},
        {"ldflags": "-s"},
        {"programs": {"thing": "example.org/other"}},
    ],
)
def test_the_digest_follows_whatever_decides_the_bytes(target, change):
    assert replace(target, **change).digest() != target.digest()


def test_text_does_not_move_between_go_mod_and_go_sum_unnoticed(target):
    before = target.digest()

    (target.folder / "go.mod").write_text("")
    (target.folder / "go.sum").write_text("module x\n")

    assert target.digest() != before


def test_the_cache_follows_xdg_and_falls_back_to_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "aliquot-e2e"

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache/aliquot-e2e"


def test_a_program_is_absent_until_its_file_is_there(target):
    assert build.absent(target) == ["thing"]

    folder = build.binaries(target)
    folder.mkdir(parents=True)
    (folder / "thing").write_text("")

    assert build.absent(target) == []


def test_every_target_has_its_pinned_modules():
    extras = [target for group in EXTRAS.values() for target in group]
    for target in (*RELEASES.values(), *NODE_TARGETS, *TOOLS, *extras):
        module = (target.folder / "go.mod").read_text()
        for package in target.programs.values():
            ours = package == "." and (target.folder / "main.go").exists()
            assert ours or package in module, f"{target.name}: {package} is no tool of its go.mod"
        assert (target.folder / "go.sum").stat().st_size > 0


def test_the_digest_follows_programs_of_our_own(target):
    before = target.digest()

    (target.folder / "main.go").write_text("package main\n")

    assert target.digest() != before


def test_a_part_of_a_targets_programs_can_be_built(target, monkeypatch):
    made = []
    monkeypatch.setattr(build, "_go_version", lambda: "go version go1.26.1 linux/amd64")

    def make(target: Target, name: str, folder: Path) -> None:
        made.append(name)
        (folder / name).write_text("")

    monkeypatch.setattr(build, "_build_one", make)
    two = replace(target, programs={"a": "example.org/a", "b": "example.org/b"})

    build.build(two, only=("b",))

    assert made == ["b"]
    assert build.absent(two) == ["a"]


def test_kubernetes_programs_carry_their_version():
    target = kubernetes("1.37.2", "go1.27.3")

    assert target.folder.name == "k8s-1.37"
    assert "version.gitVersion=v1.37.2" in target.ldflags
    assert "version.gitMinor=37" in target.ldflags
    assert target.environment()["GOTOOLCHAIN"] == "go1.27.3"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go version go1.27rc1 linux/amd64", (1, 27)),
        ("go version devel", None),
    ],
)
def test_versions_of_go_are_read(text, version):
    assert build.parse_go_version(text) == version


def test_a_machine_without_go_is_told_which_version_and_where_from():
    with pytest.raises(SetupError, match=r"at least 1\.26 is wanted.*too old.*https://go\.dev/dl"):
        build.check_go(None, (1, 26))


def test_an_old_go_is_named_and_a_newer_one_is_taken():
    with pytest.raises(SetupError, match=r"go1\.19\.8.*at least 1\.21"):
        build.check_go("go version go1.19.8 linux/amd64", (1, 21))

    build.check_go("go version go1.21.0 linux/amd64", (1, 21))


def test_only_packages_whose_files_are_absent_are_missing():
    assert packages.missing(lambda _: True) == []
    assert packages.missing(lambda what: what not in ("runc", "ip")) == ["runc", "iproute2"]


def test_an_unknown_word_on_the_command_line_is_refused_with_the_known_ones(capsys):
    assert build.main(["1.12"]) == 2

    known = "1.34, 1.35, 1.37, api-1.34"
    assert f"unknown: 1.12; known: {known}" in capsys.readouterr().err


def test_the_newest_control_program_is_taken_that_can_be_had(monkeypatch):
    def only(version: str) -> Path:
        if version != "550":
            raise UnavailableError(f"no {version}")
        return Path("/x/550")

    monkeypatch.setattr(packages, "real_program", only)
    assert packages.mps_program() == Path("/x/550")


def test_without_a_control_program_only_a_word_is_said(monkeypatch, capfd):
    def none(version: str) -> Path:
        raise UnavailableError(f"no mirror for {version}")

    monkeypatch.setattr(packages, "real_program", none)
    monkeypatch.setattr(packages, "missing", lambda **_: [])
    packages.ensure()
    said = capfd.readouterr()
    assert "no mirror for 550" in said.out + said.err
    with pytest.raises(SetupError, match="no mirror for 535"):
        packages.mps_program()
