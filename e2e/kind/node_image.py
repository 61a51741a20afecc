"""The image of a kind node, made here and kept in the engine's store under a digest."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import build
from e2e.cluster.components import containerd_answers
from e2e.cluster.console import phase
from e2e.cluster.errors import BuildError
from e2e.cluster.images import Image, archive, base_archives, pause_program
from e2e.cluster.polling import poll
from e2e.cluster.targets import CONTAINERD, ETCD, KIND, KIND_NODE, RELEASES, cache_folder
from e2e.image import bases
from e2e.kind import rootfs
from e2e.kind.engine import Engine

VERSION = "1.37.2"
_NAME = "localhost/aliquot-kind-node"
_REGISTRY = "registry.k8s.io"
_PAUSE = f"{_REGISTRY}/pause:3.10"
"""What containerd's configuration in kind's files names."""
_ENVIRONMENT = {"Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/bin"]}


def digest() -> str:
    """Twelve hex digits over packages, programs and our own files."""
    targets = (RELEASES["1.37"], KIND_NODE, CONTAINERD, ETCD, KIND)
    hashed = hashlib.sha256(rootfs.RECIPE.digest().encode())
    for target in targets:
        hashed.update(target.digest().encode())
    here = Path(__file__).parent
    for path in (here / "rootfs.py", here / "node_image.py", *sorted(rootfs.NODE.iterdir())):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:12]


def ensure(engine: Engine) -> str:
    """The image's name in the engine's store; made when it is not there.

    Raises BuildError, ClusterError with the end of the output of what failed.
    """
    name = f"{_NAME}:{digest()}"
    if engine.run("image", "inspect", name, check=False).returncode == 0:
        return name
    base = bases.rootfs(rootfs.RECIPE)
    with phase("kind node image"), tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        root = Path(scratch) / "rootfs"
        root.mkdir()
        subprocess.run(["tar", "-C", root, "-xpf", base], check=True)
        rootfs.assemble(root, f"v{VERSION}")
        _preload(root, Path(scratch))
        _import(engine, root, name)
    _forget_old(engine, name)
    return name


def _forget_old(engine: Engine, newest: str) -> None:
    """Each is 1.4 GB; one that a cluster still uses stays."""
    listing = engine.run("images", "--format={{.Repository}}:{{.Tag}}", _NAME).stdout
    for name in set(listing.split()) - {newest}:
        engine.run("rmi", name, check=False)


def _import(engine: Engine, root: Path, name: str) -> None:
    changes = (
        'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]',
        f"ENV container={engine.name}",
        "STOPSIGNAL SIGRTMIN+3",
    )
    options = [word for change in changes for word in ("--change", change)]
    packed = ["tar", "-C", str(root), "--xattrs", "-cf", "-", "."]
    with subprocess.Popen(packed, stdout=subprocess.PIPE) as tar:
        done = subprocess.run(
            [engine.name, "import", *options, "-", name],
            stdin=tar.stdout,
            env=engine.merged_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0 or tar.returncode != 0:
        raise BuildError(f"{engine.name} import {name}: {done.stderr.strip()}")


# What kubeadm asks for ------------------------------------------------------------------------


def wanted_images(kubeadm: Path) -> dict[str, str]:
    """Full name of each control plane image by its short one (``etcd`` → ``…/etcd:3.6.6-0``)."""
    command = [str(kubeadm), "config", "images", "list", f"--kubernetes-version=v{VERSION}"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.rpartition("/")[2].partition(":")[0]: line for line in listing.split()}


def _images(root: Path) -> Iterator[Image]:
    kubernetes, kubeadm = build.binaries(RELEASES["1.37"]), build.binaries(KIND_NODE)
    names = wanted_images(kubeadm / "kubeadm")
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        files = {f"usr/local/bin/{name}": (kubernetes / name).read_bytes()}
        yield Image(names[name], files, config=_ENVIRONMENT | {"Entrypoint": [name]})
    etcd = (build.binaries(ETCD) / "etcd").read_bytes()
    yield Image(names["etcd"], {"usr/local/bin/etcd": etcd}, config=_ENVIRONMENT)
    yield Image(_PAUSE, {"pause": pause_program()}, config={"Entrypoint": ["/pause"]})
    yield _kube_proxy(names["kube-proxy"], (kubeadm / "kube-proxy").read_bytes(), root)


def _kube_proxy(name: str, program: bytes, root: Path) -> Image:
    """kube-proxy in nftables mode calls ``nft``, which brings its libraries."""
    listing = subprocess.run(
        ["chroot", str(root), "ldd", "/usr/sbin/nft"], check=True, capture_output=True, text=True
    ).stdout
    needed = {"/usr/sbin/nft"} | {word for word in listing.split() if word.startswith("/")}
    files = {path.lstrip("/"): (root / path.lstrip("/")).read_bytes() for path in needed}
    return Image(name, {**files, "usr/local/bin/kube-proxy": program}, config=_ENVIRONMENT)


# Into the node's containerd -------------------------------------------------------------------


def _preload(root: Path, scratch: Path) -> None:
    """Import the images with a containerd of our own whose store is the node's."""
    with _containerd(root, scratch) as ctr:
        for image in _images(root):
            packed = scratch / "image.tar"
            packed.write_bytes(archive(image))
            _ctr_import(ctr, packed)
            packed.unlink()
        for path in base_archives():
            _ctr_import(ctr, path)


def _ctr_import(ctr: list[str], packed: Path) -> None:
    done = subprocess.run(
        [*ctr, "-n", "k8s.io", "images", "import", "--snapshotter=overlayfs", str(packed)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"import into the kind node: {done.stderr.strip()}")


@contextmanager
def _containerd(root: Path, scratch: Path) -> Iterator[list[str]]:
    """A containerd without CRI on the node's store; yields the command line of its client."""
    programs = build.binaries(CONTAINERD)
    address = scratch / "c.sock"
    config = scratch / "containerd.toml"
    config.write_text(_containerd_config(root, scratch, address), encoding="utf-8")
    ctr = [str(programs / "ctr"), "-a", str(address)]
    log = scratch / "containerd.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [programs / "containerd", "-c", config], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            poll(
                lambda: containerd_answers(ctr),
                "containerd of the kind node image",
                timeout_s=30,
                detail=lambda: log.read_text(errors="replace")[-2000:],
            )
            yield ctr
        finally:
            process.terminate()
            process.wait()
    shutil.rmtree(scratch / "state", ignore_errors=True)


def _containerd_config(root: Path, scratch: Path, address: Path) -> str:
    return f"""version = 3
root = "{root}/var/lib/containerd"
state = "{scratch}/state"
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
]
[grpc]
  address = "{address}"
[ttrpc]
  address = "{address}.ttrpc"
"""
