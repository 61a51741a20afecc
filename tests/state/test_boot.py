import pytest

from driver.errors import StateError
from driver.state.boot import boot_id
from tests.state.builders import BOOT


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    return tmp_path


def test_the_boot_id_is_what_the_kernel_says(proc):
    (proc / "sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
    assert boot_id(proc) == BOOT


def test_a_missing_boot_id_is_an_error_that_names_the_file(proc):
    with pytest.raises(StateError, match="random/boot_id cannot be read"):
        boot_id(proc)


@pytest.mark.parametrize("content", [b"", b"\n", b"not-a-uuid", BOOT.encode() * 2])
def test_what_is_not_a_uuid_is_no_boot_id(proc, content):
    (proc / "sys/kernel/random/boot_id").write_bytes(content)
    with pytest.raises(StateError, match="wanted a UUID"):
        boot_id(proc)


def test_bytes_that_are_no_text_are_no_boot_id(proc):
    (proc / "sys/kernel/random/boot_id").write_bytes(b"\xff")
    with pytest.raises(StateError, match="cannot be read"):
        boot_id(proc)
