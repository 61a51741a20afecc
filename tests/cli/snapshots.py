"""What a folder holds, to show that a command changed nothing."""

from pathlib import Path


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Name → mode, inode, modification time and content of everything below ``folder``."""
    return {str(path.relative_to(folder)): _state(path) for path in sorted(folder.rglob("*"))}


def _state(path: Path) -> tuple[object, ...]:
    stat = path.lstat()
    content = path.read_bytes() if path.is_file() else b""
    return stat.st_mode, stat.st_ino, stat.st_mtime_ns, content
