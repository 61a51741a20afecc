"""Image archives made without a registry."""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.errors import SetupError
from e2e.cluster.images import Image, archive, busybox_image, libraries, with_program


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def blob(files: dict[str, bytes], descriptor: dict[str, str]) -> bytes:
    return files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]


IMAGE = Image("localhost/x:1", {"bin/x": b"program"}, {"bin/y": "x"}, {"Cmd": ["x"]})


def test_an_archive_leads_from_its_name_to_its_files():
    files = contents(archive(IMAGE, "amd64"))

    entry = json.loads(files["index.json"])["manifests"][0]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/x:1"
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    layer = blob(files, manifest["layers"][0])
    assert config["config"] == {"Cmd": ["x"]}
    assert config["architecture"] == "amd64"
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert tar.getmember("bin/x").mode == 0o755
        assert tar.getmember("bin/y").linkname == "x"


def test_every_blob_is_named_by_its_digest():
    for name, data in contents(archive(IMAGE, "amd64")).items():
        if name.startswith("blobs/sha256/"):
            assert name.endswith(hashlib.sha256(data).hexdigest())


def test_the_same_image_gives_the_same_bytes():
    assert archive(IMAGE, "arm64") == archive(IMAGE, "arm64")
    assert archive(IMAGE, "arm64") != archive(IMAGE, "amd64")


def test_busybox_gets_a_link_for_each_applet_but_none_to_itself():
    image = busybox_image(b"\x7fELF static", ["busybox", "sh", "ls"])

    assert image.links == {"bin/sh": "busybox", "bin/ls": "busybox"}


def test_a_dynamic_busybox_is_refused_with_the_package_that_has_a_static_one():
    with pytest.raises(SetupError, match="busybox-static"):
        busybox_image(b"\x7fELF /lib64/ld-linux-x86-64.so.2", ["sh"])


LDD = """\
\tlinux-vdso.so.1 (0x00007f802d0b1000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f802ceaf000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f802d0b3000)
"""


def test_the_libraries_of_a_program_are_those_that_ldd_finds():
    wanted = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
    assert libraries(LDD) == wanted
    assert libraries("\tstatically linked\n") == []


def test_a_program_without_its_libraries_makes_no_image(tmp_path):
    broken = tmp_path / "program"
    broken.write_text("no program")
    with pytest.raises(SetupError, match=r"ldd .*program"):
        with_program("localhost/x:1", broken)


@pytest.mark.skipif(
    not (Path("/bin/busybox").exists() and sys.platform == "linux"), reason="needs busybox-static"
)
def test_a_dynamic_program_takes_its_loader_along():
    files = contents(with_program("localhost/x:1", Path("/bin/ls")))
    layer = max(files.values(), key=len)
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        names = tar.getnames()
    assert {"bin/ls", "bin/busybox"} <= set(names)
    assert any("ld-linux" in name for name in names)
    assert names.count("bin/ls") == 1  # not also busybox's link of this name
