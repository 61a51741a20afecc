"""``python -m mps.standin FOLDER``: put the stand-in there, for nodes with simulated cards."""

import sys
from pathlib import Path

from mps.standin.install import install

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m mps.standin FOLDER")
    sys.stdout.write(f"{install(Path(sys.argv[1]))}\n")
