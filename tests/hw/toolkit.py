"""Stand-ins for nvidia-ctk. The real one is run in e2e/test_toolkit.py."""

import json
from pathlib import Path
from typing import Any

VERSION = "580.105.08"  # of the simulated driver
CUDA = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"


def write_program(folder: Path, body: str, mode: int = 0o755) -> Path:
    """nvidia-ctk in ``folder``: a shell script."""
    path = folder / "nvidia-ctk"
    path.unlink(missing_ok=True)  # another inode, as a package manager makes it
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


def printing(document: object) -> str:
    return f"cat <<'END'\n{json.dumps(document)}\nEND"


def common(root: Path, **more: Any) -> dict[str, Any]:
    """The containerEdits that nvidia-ctk 1.20 prints below ``root``, shortened."""
    hook = {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"],
        "env": ["NVIDIA_CTK_DEBUG=false"],
    }
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    mount = {"hostPath": f"{root}{CUDA}", "containerPath": CUDA, "options": options}
    return {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "hooks": [hook], "mounts": [mount], **more}


def stand_in(folder: Path, root: Path, **more: Any) -> dict[str, Any]:
    """A program that prints ``common``, which is returned."""
    edits = common(root, **more)
    write_program(folder, printing({"cdiVersion": "0.5.0", "containerEdits": edits}))
    return edits
