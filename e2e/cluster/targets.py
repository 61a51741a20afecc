"""What is built from Go modules, in which version, and the digest that names the result."""

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
_VERSION_PACKAGE = "k8s.io/component-base/version"
KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
)


@dataclass(frozen=True)
class Target:
    """Programs built from one folder with ``go.mod`` and ``go.sum``.

    ``programs`` maps the file to make to the package it is built from. ``toolchain`` is a value
    of GOTOOLCHAIN: a version such as ``go1.27.3`` (the go command fetches it through the module
    proxy), or ``local``.
    """

    name: str
    folder: Path
    programs: Mapping[str, str]
    toolchain: str = "local"
    ldflags: str = "-s -w"
    least_go: tuple[int, int] = field(default=(1, 21))
    cgo: bool = False  # needs gcc

    def environment(self) -> dict[str, str]:
        """Variables that decide what comes out; part of the digest."""
        return {
            "CGO_ENABLED": "1" if self.cgo else "0",
            "GOFLAGS": "-mod=readonly -buildvcs=false",
            "GOTOOLCHAIN": self.toolchain,
            "GOWORK": "off",
        }

    def flags(self) -> list[str]:
        """Arguments of ``go build`` before the output and the package."""
        return ["-trimpath", "-ldflags", self.ldflags]

    def digest(self) -> str:
        """Twelve hex digits over everything that decides the programs' bytes.

        Raises FileNotFoundError if the folder lacks ``go.mod`` or ``go.sum``.
        """
        parts = [(self.folder / file).read_bytes() for file in ("go.mod", "go.sum")]
        parts += [source.read_bytes() for source in sorted(self.folder.glob("*.go"))]
        settings = [sorted(self.programs.items()), sorted(self.environment().items())]
        parts.append(repr([*settings, self.flags(), platform.machine()]).encode())
        hashed = hashlib.sha256()
        for part in parts:
            hashed.update(hashlib.sha256(part).digest())
        return hashed.hexdigest()[:12]


def kubernetes(
    version: str,
    toolchain: str,
    programs: Sequence[str] = KUBERNETES_PROGRAMS,
    folder: str = "",
) -> Target:
    """Programs of one Kubernetes version, such as ``1.37.2``.

    Without the version in the linker flags they call themselves v0.0.0-master, and clients and
    feature gates go wrong.
    """
    major, minor, _ = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "unknown",
        "gitTreeState": "clean",
    }
    stamps = " ".join(f"-X {_VERSION_PACKAGE}.{key}={value}" for key, value in values.items())
    return Target(
        name=f"{Path(folder).name or 'kubernetes'}-{version}",
        folder=HERE / (folder or f"k8s-{major}.{minor}"),
        programs={program: f"k8s.io/kubernetes/cmd/{program}" for program in programs},
        toolchain=toolchain,
        ldflags=f"-s -w {stamps}",
    )


RELEASES: Mapping[str, Target] = {
    "1.34": kubernetes("1.34.4", "local"),
    "1.35": kubernetes("1.35.4", "local"),
    "1.37": kubernetes("1.37.2", "go1.27.3"),
}
"""Kubernetes versions that a cluster can be made of, by minor version; the last is the default."""

KIND_NODE = kubernetes("1.37.2", "go1.27.3", ("kubeadm", "kube-proxy"), "tools/kubeadm")
"""What a node of a kind cluster has beside the five."""

_CONTAINERD = "github.com/containerd/containerd/v2/cmd"

CONTAINERD = Target(
    name="containerd-2.4.2",
    folder=HERE / "node/containerd",
    programs={
        "containerd": f"{_CONTAINERD}/containerd",
        "containerd-shim-runc-v2": f"{_CONTAINERD}/containerd-shim-runc-v2",
        "ctr": f"{_CONTAINERD}/ctr",
        "crictl": "sigs.k8s.io/cri-tools/cmd/crictl",
    },
    least_go=(1, 26),
)
ETCD = Target(
    name="etcd-3.6.16",
    folder=HERE / "node/etcd",
    programs={"etcd": "go.etcd.io/etcd/server/v3"},
    least_go=(1, 26),
)
NODE_TARGETS = (CONTAINERD, ETCD)

_EXAMPLE = "sigs.k8s.io/dra-example-driver/cmd"
EXAMPLE_DRIVER = Target(
    name="dra-example-driver-0.4.0",
    folder=HERE / "dra-example-driver",
    programs={"dra-example-kubeletplugin": f"{_EXAMPLE}/dra-example-kubeletplugin"},
    least_go=(1, 26),
)
HELM = Target(
    name="helm-4.3.2",
    folder=HERE / "tools/helm",
    programs={"helm": "helm.sh/helm/v4/cmd/helm"},
    ldflags="-s -w -X helm.sh/helm/v4/internal/version.version=v4.3.2",
    least_go=(1, 26),
)
CDI_CHECK = Target(
    name="cdi-check-1.1.2",
    folder=HERE / "tools/cdi",
    programs={"cdi-check": "."},
    least_go=(1, 26),
)
KIND = Target(
    name="kind-0.33.0",
    folder=HERE / "tools/kind",
    programs={"kind": "sigs.k8s.io/kind"},
    least_go=(1, 26),
)
_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit/cmd"
TOOLKIT = Target(
    name="nvidia-container-toolkit-1.20.2",
    folder=HERE / "tools/toolkit",
    programs={name: f"{_TOOLKIT}/{name}" for name in ("nvidia-ctk", "nvidia-cdi-hook")},
    least_go=(1, 26),
    cgo=True,  # it opens NVML's library
)
TOOLS = (HELM, CDI_CHECK, TOOLKIT)
"""What tests need on any cluster, beside the node's own programs."""

EXTRAS: Mapping[str, Sequence[Target]] = {
    "dra-example-driver": (EXAMPLE_DRIVER,),
    "kind": (KIND, KIND_NODE),
}
"""What the local cluster does not need: the Go driver that benches compare with, and kind."""


def cache_folder() -> Path:
    """Where built programs and images lie: ``$XDG_CACHE_HOME/aliquot-e2e``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aliquot-e2e"
