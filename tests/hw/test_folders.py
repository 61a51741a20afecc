import pytest

from driver.hw.folders import find_library, inside, library_folders, program_folders


def test_links_are_followed_as_if_chrooted(tmp_path):
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("/usr/lib64")
    (tmp_path / "usr/deep").symlink_to("../../../../usr/./lib64")
    real = tmp_path.resolve() / "usr/lib64"
    assert inside(tmp_path, "lib64") == real
    assert inside(tmp_path, "/lib64/../lib64/x") == real / "x"
    assert inside(tmp_path, "usr/deep") == real
    assert inside(tmp_path, "../..") == tmp_path.resolve()


def test_a_link_loop_is_an_error_and_not_a_hang(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        inside(tmp_path, "a")


def test_the_folders_of_the_loader_come_first_and_each_once(tmp_path):
    for folder in ("opt/driver/lib", "extra", "usr/lib64", "etc/ld.so.conf.d"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("usr/lib64")
    (tmp_path / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n/extra # mine\n\n")
    (tmp_path / "etc/ld.so.conf.d/b.conf").write_text("/usr/lib64\n/absent\n")
    (tmp_path / "etc/ld.so.conf.d/a.conf").write_text(
        "# a comment\n/opt/driver/lib\ninclude /etc/ld.so.conf\n"
    )
    root = tmp_path.resolve()
    assert library_folders(tmp_path) == (
        root / "opt/driver/lib",
        root / "usr/lib64",
        root / "extra",
    )


def test_a_library_is_found_through_its_links_in_every_folder(tmp_path):
    for folder in ("usr/lib/x86_64-linux-gnu", "usr/lib64"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "libx.so.580").touch()
        (tmp_path / folder / "libx.so.1").symlink_to("libx.so.580")
    (tmp_path / "usr/lib/libx.so.1").symlink_to("gone")
    root = tmp_path.resolve()
    assert find_library(tmp_path, "libx.so.1") == (
        root / "usr/lib/x86_64-linux-gnu/libx.so.580",
        root / "usr/lib64/libx.so.580",
    )


def test_program_folders_are_those_that_exist(tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    assert program_folders(tmp_path) == (tmp_path.resolve() / "usr/bin",)
