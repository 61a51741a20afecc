"""Puts the stand-in where a control program is expected."""

import json
import sys
from pathlib import Path

VERSIONS = {
    "535": "535.261.03",
    "550": "550.163.01",
    "555": "555.58.02",
    "580": "580.95.05",
    "615": "615.71.09",
}
NAME = "nvidia-cuda-mps-control"

_ROOT = Path(__file__).parents[2]
_SCRIPT = """#!{python} -IS
# {full}
import sys
sys.path.insert(0, {root!r})
from mps.standin.main import main
sys.exit(main({version!r}))
"""


def install(folder: Path, version: str = "580") -> Path:
    """Write the program into ``folder``; returns its path.

    ``version`` is one of VERSIONS. ``set_knobs`` makes it misbehave.

    Raises:
        KeyError: there is no such version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    text = _SCRIPT.format(
        python=sys.executable, full=VERSIONS[version], root=str(_ROOT), version=version
    )
    temporary = folder / f".{NAME}.tmp"
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)  # a running daemon may be read from the old one
    return path


def set_knobs(program: Path, **knobs: object) -> None:
    """From now on the program behaves so (see ``mps.standin.knobs``); none: as it should."""
    path = program.with_name(f"{program.name}.json")
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(knobs))
    temporary.replace(path)
