import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def root():
    """A kubelet root with a short path: Unix sockets allow 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="kp"))
    yield folder
    shutil.rmtree(folder)
