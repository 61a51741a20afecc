"""Builds the programs of a cluster from pinned Go modules, only those that are missing.

``python -m e2e.cluster.build [MINOR …] [api-MINOR …] [dra-example-driver] [kind]``: without
arguments the newest Kubernetes, containerd, etcd, helm and a checker of CDI specs; ``api-1.34``
adds the API server alone of that version. Cold it takes about 15 minutes on two cores; with
Go's own build cache, or for programs that are there, seconds. Results lie under
``$XDG_CACHE_HOME/aliquot-e2e`` (default ``~/.cache``) by a digest of go.mod, go.sum and flags.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from e2e.cluster import packages
from e2e.cluster.console import phase, say
from e2e.cluster.errors import BuildError, ClusterError, SetupError
from e2e.cluster.targets import (
    EXTRAS,
    NODE_TARGETS,
    RELEASES,
    TOOLS,
    Target,
    cache_folder,
)

_GO_HELP = (
    "get it from https://go.dev/dl/ (unpack to /usr/local/go, add /usr/local/go/bin to PATH); "
    "newer versions that a module asks for are then fetched by the go command itself"
)


def parse_go_version(text: str) -> tuple[int, int] | None:
    """Major and minor version in the output of ``go version``, None if there is none."""
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def check_go(version_output: str | None, wanted: tuple[int, int]) -> None:
    """Raise SetupError unless ``go version`` printed at least ``wanted``; None: no go at all."""
    least = ".".join(map(str, wanted))
    if version_output is None:
        hint = "Debian 12's golang-go is 1.19, too old"
        raise SetupError(f"no go command on PATH, at least {least} is wanted ({hint}): {_GO_HELP}")
    found = parse_go_version(version_output)
    if found is None or found < wanted:
        raise SetupError(f"found {version_output!r}, at least {least} is wanted: {_GO_HELP}")


def _go() -> str:
    local = "/usr/local/go/bin/go"
    return shutil.which("go") or (local if Path(local).exists() else "go")


def _go_version() -> str | None:
    try:
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        done = subprocess.run(
            [_go(), "version"], capture_output=True, text=True, check=True, env=environment
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def binaries(target: Target) -> Path:
    """The folder in which the target's programs lie (or will lie)."""
    return cache_folder() / f"{target.name}-{target.digest()}"


def absent(target: Target) -> list[str]:
    """Names of the target's programs that are not built yet."""
    folder = binaries(target)
    return [name for name in target.programs if not (folder / name).exists()]


def build(target: Target, only: Collection[str] | None = None) -> Path:
    """Build what is missing of ``target`` (of ``only`` these programs) and return the folder.

    A program appears under its name only when it is complete. Raises BuildError with the end
    of Go's output, SetupError if there is no fit go command.
    """
    folder = binaries(target)
    todo = [name for name in absent(target) if only is None or name in only]
    if todo:
        check_go(_go_version(), target.least_go)
        folder.mkdir(parents=True, exist_ok=True)
        say(f"{target.name}: building {len(todo)} of {len(target.programs)} programs")
    for number, name in enumerate(todo, 1):
        begin = time.monotonic()
        _build_one(target, name, folder)
        size = (folder / name).stat().st_size / 1e6
        took = time.monotonic() - begin
        say(f"{target.name}: {number}/{len(todo)} {name} {size:.0f} MB, {took:.1f} s")
    return folder


def _build_one(target: Target, name: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
        output = Path(scratch) / name
        done = subprocess.run(
            [_go(), "build", *target.flags(), "-o", str(output), target.programs[name]],
            cwd=target.folder,
            env={**os.environ, **target.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stderr.splitlines()[-20:])
            raise BuildError(f"go build {target.programs[name]} in {target.folder}:\n{tail}")
        output.replace(folder / name)


def go_json(target: Target, *arguments: str) -> dict[str, Any]:
    """The JSON that a go command prints in the target's module, such as ``mod download -json``.

    Raises BuildError with the end of its output, SetupError if there is no fit go command.
    """
    check_go(_go_version(), target.least_go)
    environment = {**os.environ, **target.environment()}
    done = subprocess.run(
        [_go(), *arguments],
        cwd=target.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"go {' '.join(arguments)} in {target.folder}:\n{done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def build_all(
    minors: Sequence[str] = (),
    extra: Sequence[Target] = (),
    more_packages: Mapping[str, Path | str] = MappingProxyType({}),
) -> None:
    """Install missing packages and build what clusters of these Kubernetes minors need."""
    packages.ensure({**packages.PACKAGES, **more_packages})
    wanted = [RELEASES[minor] for minor in minors or list(RELEASES)[-1:]]
    for target in (*wanted, *NODE_TARGETS, *TOOLS, *extra):
        build(target)


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    servers = {f"api-{minor}": target for minor, target in RELEASES.items()}
    known = {*RELEASES, *servers, *EXTRAS}
    if unknown := [word for word in arguments if word not in known]:
        say(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return 2
    extra = [target for word in EXTRAS if word in arguments for target in EXTRAS[word]]
    try:
        with phase("programs"):
            build_all([word for word in arguments if word in RELEASES], extra)
            for word in arguments:
                if word in servers:
                    build(servers[word], only=("kube-apiserver",))
    except ClusterError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
