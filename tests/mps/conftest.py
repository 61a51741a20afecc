import shutil
import tempfile
from pathlib import Path

import pytest

from tests.mps.rig import Rig


@pytest.fixture
def short_root():
    """A folder with a short path: pipe directories end at 87 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="aqm-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def rig(short_root):
    """On the stand-in of version 580."""
    one = Rig(short_root)
    yield one
    one.end()


@pytest.fixture
def rig3(short_root):
    """On the stand-in of version 615, which has protocol 3."""
    one = Rig(short_root, "615")
    yield one
    one.end()
