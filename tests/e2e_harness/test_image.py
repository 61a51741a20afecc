"""What decides whether image and bases are made anew."""

from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster.errors import BuildError
from e2e.image import bases, build


def test_a_bases_digest_follows_its_packages():
    assert bases.RUN.digest() == replace(bases.RUN).digest()
    assert bases.RUN.digest() != replace(bases.RUN, packages=("dash",)).digest()
    assert bases.RUN.digest() != bases.BUILD.digest()


def test_the_context_is_what_is_not_ignored():
    assert build.context_folders("# only\n*\n!api\n!README.md\n**/__pycache__\n") == [
        "api",
        "README.md",
    ]


def test_sources_are_the_dockerfile_and_what_it_copies():
    found = {str(path.relative_to(build.ROOT)) for path in build.sources()}

    assert {"deploy/Dockerfile", ".dockerignore", "driver/main.py", "constraints.txt"} <= found
    assert not [name for name in found if "__pycache__" in name or name.startswith("tests")]


def test_the_images_digest_follows_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a").write_text("one")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "sources", lambda: [tmp_path / "a"])
    monkeypatch.setattr(build, "reference", lambda: "localhost/x:1")
    before = build.digest()

    (tmp_path / "a").write_text("two")

    assert build.digest() != before


def test_public_bases_are_named_by_the_environment(monkeypatch: pytest.MonkeyPatch):
    before = build.digest()
    monkeypatch.setenv("ALIQUOT_IMAGE_BASE", "docker.io/library/python:3.11-slim-bookworm")

    assert build.digest() != before


def test_a_failure_of_mmdebstrap_says_what_was_run(tmp_path: Path, monkeypatch):
    program = tmp_path / "mmdebstrap"
    program.write_text("#!/bin/sh\necho no such suite >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("ALIQUOT_DEBIAN_MIRROR", "http://mirror.example.com/debian")

    with pytest.raises(BuildError) as caught:
        bases.mmdebstrap(["--variant=minbase"], tmp_path / "x.tar")

    assert "no such suite" in str(caught.value)
    assert f"bookworm {tmp_path}/x.tar http://mirror.example.com/debian" in str(caught.value)
