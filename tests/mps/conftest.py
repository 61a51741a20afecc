import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def short_root():
    """A folder with a short path: pipe directories end at 87 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="aqm-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
