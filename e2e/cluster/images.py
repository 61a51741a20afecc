"""OCI image archives made without a registry: busybox, and the pause program of sandboxes.

An archive (OCI image layout in a tar) holds a layer, its config, a manifest and an index whose
annotation ``io.containerd.image.name`` gives the image its name at import.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.cluster.errors import SetupError
from e2e.cluster.targets import HERE, cache_folder

BUSYBOX = "localhost/busybox:1"
PAUSE = "localhost/pause:1"

_BUSYBOX_FILE = Path("/bin/busybox")
_FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """What goes into an image of one layer. Paths have no leading slash; files are 0755."""

    name: str
    files: Mapping[str, bytes]
    links: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _add(tar: tarfile.TarFile, info: tarfile.TarInfo, data: bytes = b"") -> None:
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o755
    return info


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in _FOLDERS:
            _add(tar, _entry(name, tarfile.DIRTYPE))
        for name, data in image.files.items():
            _add(tar, _entry(name), data)
        for name, target in image.links.items():
            _add(tar, _entry(name, tarfile.SYMTYPE, target))
    return buffer.getvalue()


def _descriptor(kind: str, data: bytes) -> dict[str, Any]:
    media = f"application/vnd.oci.image.{kind}"
    return {"mediaType": media, "digest": _digest(data), "size": len(data)}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def archive(image: Image, architecture: str | None = None) -> bytes:
    """The archive's bytes; the same image gives the same bytes.

    Raises SetupError for a machine whose name in OCI (GOARCH) is not known here.
    """
    machine = platform.machine()
    arch = architecture or _ARCHITECTURES.get(machine)
    if arch is None:
        raise SetupError(f"machine type {machine}: images are made for {list(_ARCHITECTURES)}")
    layer = _layer(image)
    rootfs = {"type": "layers", "diff_ids": [_digest(layer)]}
    config = _json({"architecture": arch, "os": "linux", "config": image.config, "rootfs": rootfs})
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", layer)],
        }
    )
    named = {"annotations": {"io.containerd.image.name": image.name}}
    index = {"schemaVersion": 2, "manifests": [_descriptor("manifest.v1+json", manifest) | named]}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, _entry("oci-layout"), b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, _entry("index.json"), _json(index))
        for blob in (layer, config, manifest):
            _add(tar, _entry("blobs/sha256/" + _digest(blob).removeprefix("sha256:")), blob)
    return buffer.getvalue()


def busybox_image(program: bytes, applets: Sequence[str]) -> Image:
    """An image with busybox and a link for each of its applets."""
    if b"/ld-linux" in program[:8192]:
        raise SetupError(f"{_BUSYBOX_FILE} is dynamic; images need package busybox-static")
    links = {f"bin/{name}": "busybox" for name in applets if name != "busybox"}
    config = {"Cmd": ["sh"], "Env": ["PATH=/bin"]}
    return Image(BUSYBOX, {"bin/busybox": program}, links, config)


def _host_busybox() -> Image:
    listing = subprocess.run([_BUSYBOX_FILE, "--list"], capture_output=True, text=True, check=True)
    return busybox_image(_BUSYBOX_FILE.read_bytes(), listing.stdout.split())


def libraries(listing: str) -> list[str]:
    """The files that ``ldd`` lists, loader included; what the kernel brings has none."""
    words = (line.partition("=>")[2] or line for line in listing.splitlines())
    return [word.split()[0] for word in words if word.strip().startswith("/")]


def with_program(name: str, program: Path) -> bytes:
    """The archive of an image with busybox and a dynamic program of this machine in ``/bin``,
    beside its libraries where they are here. Raises SetupError if it cannot be resolved."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if done.returncode != 0 or "not found" in done.stdout:
        raise SetupError(f"ldd {program}: {done.stderr.strip() or done.stdout.strip()}")
    base = _host_busybox()
    files = {path.lstrip("/"): Path(path).read_bytes() for path in libraries(done.stdout)}
    files |= {**base.files, f"bin/{program.name}": program.read_bytes()}
    links = {path: target for path, target in base.links.items() if path not in files}
    return archive(Image(name, files, links, base.config))


def pause_program() -> bytes:
    """The static program of sandboxes, compiled."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "pause"
        source = HERE / "pause.c"
        subprocess.run(["gcc", "-static", "-Os", "-s", "-o", program, source], check=True)
        return program.read_bytes()


def _pause() -> bytes:
    return archive(Image(PAUSE, {"pause": pause_program()}, config={"Entrypoint": ["/pause"]}))


def base_archives() -> list[Path]:
    """The archives every cluster imports, made when absent or when their sources changed."""
    source = HERE / "pause.c"
    made = []
    folder = cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    recipes = (
        ("pause", source, _pause),
        ("busybox", _BUSYBOX_FILE, lambda: archive(_host_busybox())),
    )
    for name, input_file, recipe in recipes:
        key = hashlib.sha256(input_file.read_bytes() + Path(__file__).read_bytes()).hexdigest()
        path = folder / f"{name}-{key[:12]}.tar"
        if not path.exists():
            scratch = path.with_suffix(".building")
            scratch.write_bytes(recipe())
            scratch.replace(path)
        made.append(path)
    return made
