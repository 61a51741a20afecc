import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main


@pytest.fixture
def short_root():
    """A folder with a short path: Unix sockets allow 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="aqt-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def aliquot():
    """Run a command in this process."""

    def call(*arguments: object) -> Result:
        words: Sequence[str] = [str(each) for each in arguments]
        result = CliRunner().invoke(main, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call
