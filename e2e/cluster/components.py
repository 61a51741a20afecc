"""The six programs of a node as process handles, each with the check that tells it serves."""

import http.client
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import config
from e2e.cluster.layout import ClusterSpec, Layout
from e2e.cluster.netns import NetNamespace
from e2e.cluster.processes import ManagedProcess


@dataclass(frozen=True)
class Programs:
    """Folders of built programs."""

    kubernetes: Path
    containerd: Path
    etcd: Path


@dataclass(frozen=True)
class Components:
    """Handles of the programs, in the order in which they start."""

    etcd: ManagedProcess
    containerd: ManagedProcess
    apiserver: ManagedProcess
    controller_manager: ManagedProcess
    scheduler: ManagedProcess
    kubelet: ManagedProcess

    def all(self) -> tuple[ManagedProcess, ...]:
        """Every handle, in the order of starting."""
        return (
            self.etcd,
            self.containerd,
            self.apiserver,
            self.controller_manager,
            self.scheduler,
            self.kubelet,
        )


def answers(netns: NetNamespace, port: int, path: str, tls: bool = False) -> bool:
    """Whether GET on the namespace's loopback answers 200.

    The certificate is not checked: the programs sign their own for these ports.
    """
    host = "127.0.0.1"
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=5, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        with netns.entered():
            connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def containerd_answers(ctr: Sequence[str]) -> bool:
    """Whether containerd answers its own client."""
    done = subprocess.run([*ctr, "version"], check=False, capture_output=True)
    return done.returncode == 0


@dataclass(frozen=True)
class _Maker:
    layout: Layout

    def process(
        self,
        program: Path,
        arguments: Sequence[str],
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> ManagedProcess:
        return ManagedProcess(
            name=program.name,
            argv=[str(program), *arguments],
            netns=self.layout.netns,
            log=self.layout.logs / f"{program.name}.log",
            environment=environment or {},
            ready=ready,
        )


def components(
    layout: Layout,
    spec: ClusterSpec,
    programs: Programs,
    api_ready: Callable[[], bool],
    search_path: str,
) -> Components:
    """Handles of a cluster's programs; nothing is started.

    ``search_path`` is the PATH on which containerd finds the tools of the system.
    """
    make, netns, kubernetes = _Maker(layout), layout.netns, programs.kubernetes
    ctr = [str(programs.containerd / "ctr"), "-a", str(layout.containerd_socket)]
    return Components(
        etcd=make.process(
            programs.etcd / "etcd",
            config.etcd_arguments(layout),
            lambda: answers(netns, 2379, "/health"),
        ),
        containerd=make.process(
            programs.containerd / "containerd",
            [f"--config={layout.root / 'containerd.toml'}"],
            lambda: containerd_answers(ctr),
            {"PATH": f"{programs.containerd}:{search_path}"},  # for its shim
        ),
        apiserver=make.process(
            kubernetes / "kube-apiserver", config.apiserver_arguments(layout, spec), api_ready
        ),
        controller_manager=make.process(
            kubernetes / "kube-controller-manager",
            config.controller_manager_arguments(layout, spec),
            lambda: answers(netns, config.CONTROLLER_MANAGER_PORT, "/healthz", tls=True),
        ),
        scheduler=make.process(
            kubernetes / "kube-scheduler",
            config.scheduler_arguments(layout, spec),
            lambda: answers(netns, config.SCHEDULER_PORT, "/healthz", tls=True),
        ),
        kubelet=make.process(
            kubernetes / "kubelet",
            config.kubelet_arguments(layout),
            lambda: answers(netns, config.KUBELET_HEALTH_PORT, "/healthz"),
            {"PATH": search_path},
        ),
    )
