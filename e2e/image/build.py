"""Builds ``deploy/Dockerfile`` with buildah and keeps the result as an OCI archive.

``python -m e2e.image.build`` prints the archive's path. The archive is named by a digest of what
goes into it, so that a second call with the same sources is only a look; buildah's layers lie
below the cache folder too, so an edit of the program takes seconds. ``ALIQUOT_IMAGE_BASE`` (and
``ALIQUOT_IMAGE_RUNBASE``) name public bases to use instead of those made of Debian packages.
"""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from e2e.cluster import packages
from e2e.cluster.console import phase, say
from e2e.cluster.errors import BuildError, ClusterError
from e2e.cluster.targets import cache_folder
from e2e.image import bases

ROOT = Path(__file__).parent.parent.parent
NAME = "localhost/aliquot"
PACKAGES: dict[str, Path | str] = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
_DOCKERFILE = ROOT / "deploy" / "Dockerfile"
_KEPT = 3  # archives of 62 MB each
_LAYERS_KEPT = 80  # images of buildah's layer cache, a dozen a build; 5 GB


def version() -> str:
    """The project's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def reference() -> str:
    """The image's full name: what the chart's default values ask for."""
    return f"{NAME}:{version()}"


def context_folders(ignore_file: str) -> list[str]:
    """Names at the top that ``.dockerignore`` lets through."""
    return re.findall(r"^!(\S+)$", ignore_file, re.MULTILINE)


def sources() -> Iterator[Path]:
    """Every file that decides what is in the image, in a fixed order."""
    yield _DOCKERFILE
    ignore = ROOT / ".dockerignore"
    yield ignore
    for name in context_folders(ignore.read_text(encoding="utf-8")):
        path = ROOT / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (f for f in found if f.is_file() and "__pycache__" not in f.parts)


def digest() -> str:
    """Twelve hex digits over the sources and the bases."""
    given = [reference(), bases.BUILD.digest(), bases.RUN.digest(), _public()]
    hashed = hashlib.sha256(repr(given).encode())
    for path in sources():
        hashed.update(str(path.relative_to(ROOT)).encode())
        hashed.update(hashlib.sha256(path.read_bytes()).digest())
    return hashed.hexdigest()[:12]


def archive() -> Path:
    """The image as an OCI archive, built when its sources have changed.

    Raises BuildError with the end of buildah's output, SetupError where packages are missing.
    """
    path = cache_folder() / "images" / f"aliquot-{digest()}.tar"
    if not path.exists():
        packages.ensure(PACKAGES)
        path.parent.mkdir(parents=True, exist_ok=True)
        with phase("image"):
            build(reference(), path)
        _forget_old(path)
    return path


def build(name: str, path: Path) -> None:
    """Build the image and write it to ``path`` under ``name``."""
    base, run_base = _bases()
    arguments = {
        "BASE": base,
        "RUNBASE": run_base,
        "VERSION": version(),
        "REVISION": _revision(),
        **_index_arguments(),
    }
    built = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    options = ["--layers", "--isolation=chroot", "--network=host", *_certificates(), *built]
    _buildah("bud", *options, "-t", name, "-f", str(_DOCKERFILE), str(ROOT))
    scratch = path.with_suffix(".building")
    scratch.unlink(missing_ok=True)
    _buildah("push", "-q", name, f"oci-archive:{scratch}:{name}")
    scratch.replace(path)


def _public() -> tuple[str, str]:
    base = os.environ.get("ALIQUOT_IMAGE_BASE", "")
    return base, os.environ.get("ALIQUOT_IMAGE_RUNBASE") or base


def _bases() -> tuple[str, str]:
    public = _public()
    return public if public[0] else (_import(bases.BUILD), _import(bases.RUN))


def _import(recipe: bases.Recipe) -> str:
    """The base's name in buildah's store, imported when it is not there."""
    name = f"localhost/aliquot-base-{recipe.name}:{recipe.digest()}"
    if name not in _buildah("images", "--format={{.Name}}:{{.Tag}}").splitlines():
        tar = bases.rootfs(recipe)
        recipe_text = f"FROM scratch\nADD {tar.name} /\n"
        _buildah("bud", "-t", name, "-f", "-", str(tar.parent), text=recipe_text)
    return name


def _certificates() -> list[str]:
    """Behind a proxy with a CA of its own pip needs this machine's bundle."""
    bundle = os.environ.get("PIP_CERT")
    if not bundle:
        return []
    return [
        f"--volume={Path(bundle).resolve()}:/run/ca.crt:ro",
        "--build-arg=PIP_CERT=/run/ca.crt",
    ]


def _index_arguments() -> dict[str, str]:
    index = os.environ.get("PIP_INDEX_URL")
    return {"PIP_INDEX_URL": index} if index else {}


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _buildah(*arguments: str, text: str | None = None) -> str:
    """Run buildah with a store of our own, so that the machine's is left alone."""
    store = cache_folder() / "buildah"
    command = [
        packages.program("buildah"),
        f"--root={store / 'root'}",
        f"--runroot={store / 'run'}",
        "--storage-driver=overlay",
        *arguments,
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BuildError(f"{' '.join(command)}:\n{tail}")
    return done.stdout


def _forget_old(newest: Path) -> None:
    """Old archives; and all cached layers once they are many, at the price of one cold build."""
    if len(_buildah("images", "--all", "--quiet").splitlines()) > _LAYERS_KEPT:
        _buildah("rmi", "--prune", "--force")
    made = sorted(newest.parent.glob("aliquot-*.tar"), key=lambda path: path.stat().st_mtime)
    for path in made[:-_KEPT]:
        path.unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    if arguments:
        say("usage: python -m e2e.image.build")
        return 2
    try:
        sys.stdout.write(f"{archive()}\n")
    except ClusterError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
