"""Base images of Debian packages, where no registry is: what ``deploy/Dockerfile`` builds upon.

One to build in (venv and its pip) and a smaller one to run in. Each is a tar of a root file
system, made once by mmdebstrap and kept below the cache folder under a digest of its recipe.
"""

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.console import phase
from e2e.cluster.errors import BuildError
from e2e.cluster.targets import cache_folder

SUITE = "bookworm"
_LEFT_OUT = ("doc", "man", "locale", "info")
"""Below /usr/share: never read in a container."""


@dataclass(frozen=True)
class Recipe:
    """A root file system: mmdebstrap's variant and the packages beside it.

    ``extract`` only unpacks: no package is configured, so there is no apt, no dpkg database.
    """

    name: str
    variant: str
    packages: tuple[str, ...]

    def arguments(self) -> list[str]:
        """Arguments of mmdebstrap before suite, target and mirror."""
        left_out = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in _LEFT_OUT]
        return [f"--variant={self.variant}", f"--include={','.join(self.packages)}", *left_out]

    def digest(self) -> str:
        """Twelve hex digits over what decides the content, but for the mirror's day."""
        return hashlib.sha256(repr((SUITE, self.arguments())).encode()).hexdigest()[:12]


BUILD = Recipe("build", "minbase", ("python3-minimal", "python3-venv"))
RUN = Recipe(
    "run",
    "extract",
    (
        "python3-minimal",
        "python3.11-minimal",
        "libpython3-stdlib",
        "libstdc++6",  # grpc is written in C++
        "dash",
        "coreutils",
        "findutils",
        "libc-bin",
        "base-files",
        "tzdata",
    ),
)


def rootfs(recipe: Recipe) -> Path:
    """The tar of a recipe, made when absent. Raises BuildError with mmdebstrap's last words."""
    path = cache_folder() / "bases" / f"{recipe.name}-{recipe.digest()}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with phase(f"root file system {recipe.name}"):
            scratch = path.with_suffix(".building.tar")
            mmdebstrap(recipe.arguments(), scratch)
            scratch.replace(path)
    return path


def mmdebstrap(arguments: list[str], target: Path) -> None:
    """Make ``target`` (a tar, or a folder) of Debian packages.

    ``$ALIQUOT_DEBIAN_MIRROR`` is taken instead of Debian's own. Raises BuildError.
    """
    mirror = os.environ.get("ALIQUOT_DEBIAN_MIRROR")
    command = ["mmdebstrap", *arguments, SUITE, str(target), *([mirror] if mirror else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-10:])
        raise BuildError(f"{' '.join(command)}:\n{tail}")
