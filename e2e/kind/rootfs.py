"""The root file system of a kind node: Debian packages, kind's own files, our programs.

kind's published image is made of the same parts; this one needs no registry. Everything that is
not built here comes from the kind module (``images/base/files``).
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster import build
from e2e.cluster.errors import BuildError
from e2e.cluster.targets import CONTAINERD, KIND, KIND_NODE, RELEASES
from e2e.image.bases import Recipe

NODE = Path(__file__).parent / "node"
RECIPE = Recipe(
    "kind-node",
    "minbase",
    (
        "systemd",
        "conntrack",
        "iptables",
        "nftables",
        "iproute2",
        "ethtool",
        "util-linux",
        "mount",
        "kmod",
        "libseccomp2",
        "socat",
        "bash",
        "ca-certificates",
        "jq",
        "procps",
        "hostname",
        "containernetworking-plugins",
        "runc",
    ),
)
_CNI_PLUGINS = ("host-local", "loopback", "ptp", "portmap")
_SERVICES = ("kubelet", "containerd", "undo-mount-hacks", "node-cni")
# Units that a container must not start: the same trimming as in kind's Dockerfile.
_NOT_STARTED = (
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "lib/systemd/system/multi-user.target.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/basic.target.wants/*",
    "etc/systemd/system/*.wants/*",
)


def programs() -> Mapping[str, Path]:
    """Where in the node each program goes (no leading slash), and where it lies now."""
    kubernetes, kubeadm = build.binaries(RELEASES["1.37"]), build.binaries(KIND_NODE)
    containerd = build.binaries(CONTAINERD)
    found = {f"usr/local/bin/{name}": containerd / name for name in CONTAINERD.programs}
    found |= {f"usr/bin/{name}": kubernetes / name for name in ("kubelet", "kubectl")}
    return found | {"usr/bin/kubeadm": kubeadm / "kubeadm"}


def kind_files() -> Path:
    """``images/base/files`` of the kind module of our go.mod."""
    answer = build.go_json(KIND, "mod", "download", "-json", "sigs.k8s.io/kind")
    return Path(answer["Dir"]) / "images" / "base" / "files"


def assemble(root: Path, version: str) -> None:
    """Turn an unpacked ``RECIPE`` into a node of Kubernetes ``version`` (such as v1.37.2)."""
    _copy_kind_files(root)
    for target, source in programs().items():
        shutil.copyfile(source, root / target)
        (root / target).chmod(0o755)
    for folder in ("opt/cni/bin", "etc/kubernetes/manifests", "etc/cni/net.d", "kind/manifests"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for plugin in _CNI_PLUGINS:
        shutil.copy(root / "usr/lib/cni" / plugin, root / "opt/cni/bin" / plugin)
    (root / "kind/version").write_text(version, encoding="utf-8")
    _units(root)
    _containerd(root)
    _network(root)


def _copy_kind_files(root: Path) -> None:
    """The module cache has neither execute bits nor write bits."""
    source = kind_files()
    for path in sorted(source.rglob("*")):  # a folder comes before what is in it
        target = root / path.relative_to(source)
        if path.is_dir():
            target.mkdir(exist_ok=True)
            continue
        shutil.copyfile(path, target)
        target.chmod(0o755 if target.parent.name == "bin" else 0o644)


def _units(root: Path) -> None:
    for pattern in _NOT_STARTED:
        for path in root.glob(pattern):
            path.unlink()
    with (root / "etc/systemd/journald.conf").open("a", encoding="utf-8") as conf:
        conf.write("ReadKMsg=no\n")
    shutil.copyfile(NODE / "node-cni.service", root / "etc/systemd/system/node-cni.service")
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    wanted.mkdir(parents=True, exist_ok=True)
    for name in _SERVICES:
        (wanted / f"{name}.service").symlink_to(f"/etc/systemd/system/{name}.service")
    (root / "etc/systemd/system/systemd-binfmt.service").symlink_to("/dev/null")
    init = root / "sbin/init"
    init.unlink(missing_ok=True)
    init.symlink_to("/usr/lib/systemd/systemd")


def _containerd(root: Path) -> None:
    """Without CAP_SYS_RESOURCE every sandbox fails unless OOM scores are left alone."""
    config = root / "etc/containerd/config.toml"
    before = config.read_text(encoding="utf-8")
    after = before.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
    if after == before:
        raise BuildError(f"{config}: kind's file no longer sets restrict_oom_score_adj")
    config.write_text(after, encoding="utf-8")
    command = ["chroot", str(root), "/usr/local/bin/ctr", "oci", "spec"]
    spec = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append(
        {"path": "/kind/bin/mount-product-files.sh"}
    )
    del spec["process"]["rlimits"]
    (root / "etc/containerd/cri-base.json").write_text(json.dumps(spec), encoding="utf-8")


def _network(root: Path) -> None:
    for path in (root / "etc/cni/net.d").iterdir():
        path.unlink()
    script = root / "kind/bin/node-cni.sh"
    shutil.copyfile(NODE / "node-cni.sh", script)
    script.chmod(0o755)
    for name in ("default-cni.yaml", "default-storage.yaml"):
        shutil.copyfile(NODE / name, root / "kind/manifests" / name)
