"""Whether paths exist and can be written to, for users that may not look everywhere."""

import os
from pathlib import Path


def present(path: Path) -> bool:
    """Whether there is something, or may be: what is closed to us shows at reading it."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def unwritable(folder: Path) -> str:
    """Why ``folder`` cannot be written to or made; empty when it can."""
    for path in (folder, *folder.parents):
        if present(path):
            if os.path.isfile(path):
                return f"{path} is a file"
            return "" if os.access(path, os.W_OK | os.X_OK) else f"{path} is not writable"
    return f"{folder} has no parent"


def told(folder: Path) -> str:
    """The folder, and whether it is still to be made."""
    return str(folder) if present(folder) else f"{folder} will be made"
