"""Where a driver root keeps its libraries and programs.

A driver root is a file system of its own (``/``, or where a driver container mounted one), so
absolute links inside it start at the root again.
"""

import os
from collections.abc import Iterator
from pathlib import Path

# The loader's configuration does not name its built-in folders; the rest are places where
# distributions put the driver without telling it: WSL, Container-Optimized OS, NixOS, Talos.
LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/lib",
    "run/opengl-driver/lib",
    "usr/local/glibc/usr/lib",
)
PROGRAM_FOLDERS = (
    "usr/bin",
    "usr/sbin",
    "bin",
    "sbin",
    "usr/local/bin",
    "usr/local/nvidia/bin",
    "opt/bin",
)
_MOST_LINKS = 40  # as the kernel's ELOOP


def inside(root: Path, path: str) -> Path:
    """``path`` of the driver root as seen from here, links followed as if chrooted to ``root``.

    A path that does not exist comes back as it would be. Raises OSError (ELOOP) on a link loop.
    """
    root = root.resolve()
    parts = [part for part in reversed(path.split("/")) if part not in {"", "."}]
    current = root
    links = 0
    while parts:
        part = parts.pop()
        if part == "..":
            current = current.parent if current != root else root
            continue
        step = current / part
        if not step.is_symlink():
            current = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(40, os.strerror(40), str(root / path.lstrip("/")))
        target = os.readlink(step)
        current = root if target.startswith("/") else current
        parts += [one for one in reversed(target.split("/")) if one not in {"", "."}]
    return current


def library_folders(root: Path) -> tuple[Path, ...]:
    """Existing library folders below ``root``: the loader's (``ld.so.conf``), then common ones.
    Each real folder once, links resolved."""
    names = [*_configured(root, "etc/ld.so.conf"), *LIBRARY_FOLDERS]
    return _existing(root, names)


def program_folders(root: Path) -> tuple[Path, ...]:
    """Existing program folders below ``root``, each real folder once."""
    return _existing(root, PROGRAM_FOLDERS)


def find_library(root: Path, name: str) -> tuple[Path, ...]:
    """Every file ``name`` in the library folders of ``root``, links resolved, in their order."""
    found = (folder / name for folder in library_folders(root))
    real = (inside(root, str(path.relative_to(root.resolve()))) for path in found)
    return tuple(dict.fromkeys(path for path in real if path.is_file()))


def _existing(root: Path, names: Iterator[str] | list[str] | tuple[str, ...]) -> tuple[Path, ...]:
    folders = (inside(root, name) for name in names)
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def _configured(root: Path, conf: str, read: set[Path] | None = None) -> Iterator[str]:
    """The folders that ``ld.so.conf`` names, each included file read once (ldconfig(8))."""
    read = set() if read is None else read
    file = inside(root, conf)
    if file in read or not file.is_file():
        return
    read.add(file)
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for included in _matching(root, str(Path(conf).parent), words[1:]):
                yield from _configured(root, included, read)
        elif words:
            yield words[0]


def _matching(root: Path, folder: str, patterns: list[str]) -> Iterator[str]:
    base = root.resolve()
    for pattern in patterns:
        relative = pattern.lstrip("/") if pattern.startswith("/") else f"{folder}/{pattern}"
        yield from (str(path.relative_to(base)) for path in sorted(base.glob(relative)))
