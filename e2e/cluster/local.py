"""A real one-node cluster on this machine, in a network namespace of its own.

The test process stays outside: ``cluster.kube`` makes its sockets inside, programs are started
inside by ``exec_in_netns`` and ``spawn``, and Python code that connects by itself does so in
``with cluster.netns.entered()``. So one process can hold several clusters. No port of the host
is used, pods reach the API server at the usual service address, no kube-proxy is needed.

Everything of a cluster lies below one folder and carries its name; ``stop`` leaves nothing, and
``start`` first removes what a killed process has left of a cluster of the same name.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from e2e.cluster import build, cgroups, cleanup, config, lock, packages
from e2e.cluster.components import Components, Programs, components
from e2e.cluster.console import phase
from e2e.cluster.errors import SetupError
from e2e.cluster.images import base_archives
from e2e.cluster.kube import Kube, Object
from e2e.cluster.layout import (
    BRIDGE,
    BRIDGE_MAC,
    NODE_ADDRESS,
    SERVICE_ADDRESS,
    ClusterSpec,
    Layout,
)
from e2e.cluster.netns import NetNamespace
from e2e.cluster.pki import Authority, KeyPair, kubeconfig, service_account_keys
from e2e.cluster.processes import ManagedProcess, inside_environment
from e2e.cluster.targets import CONTAINERD, ETCD, RELEASES
from e2e.cluster.transport import inside

_SERVER_NAMES = ("localhost", "kubernetes.default.svc", "127.0.0.1", SERVICE_ADDRESS, NODE_ADDRESS)


def _programs(kubernetes: str, needed: Collection[str] | None) -> Programs:
    if kubernetes not in RELEASES:
        raise SetupError(f"Kubernetes {kubernetes}: known are {', '.join(RELEASES)}")
    targets = (RELEASES[kubernetes], CONTAINERD, ETCD)
    absent = [name for target in targets for name in build.absent(target)]
    if missing := [name for name in absent if needed is None or name in needed]:
        how = "python -m e2e.cluster.build"
        raise SetupError(f"not built yet: {', '.join(missing)}; {how} builds them")
    return Programs(*(build.binaries(target) for target in targets))


class LocalCluster:
    """API server, controller manager, scheduler, kubelet, containerd and etcd of one node."""

    NEEDED: Collection[str] | None = None  # programs that must have been built; None: all

    def __init__(self, spec: ClusterSpec | None = None) -> None:
        self.spec = spec or ClusterSpec()
        self.layout = Layout.of(self.spec.name)
        self._lock: socket.socket | None = None
        self._authority: Authority | None = None
        self._kube: Kube | None = None
        self._components: Components | None = None
        self._programs: Programs | None = None
        self._spawned: list[ManagedProcess] = []
        self._clients: list[Kube] = []

    # Who is who

    @property
    def node_name(self) -> str:
        """Name of the Node object."""
        return self.layout.node_name

    @property
    def cdi_dir(self) -> Path:
        """The folder from which containerd reads CDI specs (``/var/run/cdi`` elsewhere)."""
        return self.layout.cdi

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's folder; plugin sockets are in ``plugins_registry`` and ``plugins``."""
        return self.layout.kubelet_root

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for programs in the namespace."""
        return self.layout.pki / "admin.kubeconfig"

    @property
    def netns(self) -> NetNamespace:
        """The namespace; ``with cluster.netns.entered():`` puts the thread into it."""
        return self.layout.netns

    @property
    def kube(self) -> Kube:
        """The administrator's client."""
        if self._kube is None:
            raise self._not_started()
        return self._kube

    def _not_started(self) -> SetupError:
        return SetupError(f"cluster {self.spec.name} is not started; call start() first")

    @property
    def _handles(self) -> Components:
        if self._components is None:
            raise self._not_started()
        return self._components

    @property
    def etcd(self) -> ManagedProcess:
        """Handle of etcd. Its data is lost with a crash of the machine, not of the process."""
        return self._handles.etcd

    @property
    def apiserver(self) -> ManagedProcess:
        """Handle of kube-apiserver."""
        return self._handles.apiserver

    @property
    def controller_manager(self) -> ManagedProcess:
        """Handle of kube-controller-manager."""
        return self._handles.controller_manager

    @property
    def scheduler(self) -> ManagedProcess:
        """Handle of kube-scheduler."""
        return self._handles.scheduler

    @property
    def containerd(self) -> ManagedProcess:
        """Handle of containerd; its shims and containers outlive a restart."""
        return self._handles.containerd

    @property
    def kubelet(self) -> ManagedProcess:
        """Handle of the kubelet; pods outlive a restart."""
        return self._handles.kubelet

    @property
    def processes(self) -> tuple[ManagedProcess, ...]:
        """All handles, those of ``spawn`` last."""
        started = self._components.all() if self._components else ()
        return (*started, *self._spawned)

    # Start and stop

    def start(self) -> None:
        """From nothing to a Ready node that takes pods. Missing programs are an error.

        Raises SetupError (no root, programs not built), ClusterInUseError (another process has
        this name), ProcessError (a program ended), WaitTimeoutError.
        """
        _check_machine()
        self._programs = _programs(self.spec.kubernetes, self.NEEDED)
        self._lock = lock.take(self.layout)
        try:
            with phase(f"cluster {self.spec.name} ready"):
                if cleanup.exists(self.layout):
                    cleanup.remove(self.layout)
                self._prepare()
                self._boot(self._handles)
        except BaseException:
            self.stop(keep_folder=True)
            raise

    def _prepare(self) -> None:
        for folder in self.layout.folders():
            folder.mkdir(parents=True, exist_ok=True)
        netns = self.netns
        netns.create()
        netns.ip("link", "set", "lo", "up")
        netns.ip("address", "add", f"{SERVICE_ADDRESS}/32", "dev", "lo")
        # Else its MAC is the lowest of its ports': when that pod goes, the others talk to nobody
        # until they ask for it again. The API server was silent for 5 to 30 s.
        netns.ip("link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge")
        netns.ip("address", "add", f"{NODE_ADDRESS}/16", "dev", BRIDGE)
        netns.ip("link", "set", BRIDGE, "up")
        cgroups.create(self.layout.unique)
        admin = self._write_pki()
        self._write_configuration()
        self._kube = self._client(admin, self.kubeconfig)
        search_path = f"{os.environ.get('PATH', '')}:{packages.SYSTEM_PATH}"
        self._components = components(
            self.layout, self.spec, self._need_programs(), self._kube.healthy, search_path
        )

    def _need_programs(self) -> Programs:
        if self._programs is None:
            raise self._not_started()
        return self._programs

    def _need_authority(self) -> Authority:
        if self._authority is None:
            raise self._not_started()
        return self._authority

    def _write_pki(self) -> KeyPair:
        folder = self.layout.pki
        authority = self._authority = Authority(f"{self.layout.unique}-ca")
        node = f"system:node:{self.node_name}"
        pairs = {
            "ca": authority.pair,
            "sa": service_account_keys(),
            "apiserver": authority.issue("kube-apiserver", names=_SERVER_NAMES),
            "admin": authority.issue("admin", "system:masters"),
            "controller-manager": authority.issue("system:kube-controller-manager"),
            "scheduler": authority.issue("system:kube-scheduler"),
            "node": authority.issue(node, "system:nodes", [self.node_name, NODE_ADDRESS]),
        }
        for name, pair in pairs.items():
            pair.write(folder, name)
        for name in ("admin", "controller-manager", "scheduler", "node"):
            self.write_kubeconfig(folder / f"{name}.kubeconfig", pairs[name])
        return pairs["admin"]

    def write_kubeconfig(self, path: Path, user: KeyPair | str) -> Path:
        """A kubeconfig (0600) for a client certificate or a token, for use in the namespace."""
        path.touch(mode=0o600)
        authority = self._need_authority().pair.certificate
        path.write_text(kubeconfig(config.SERVER, authority, user), encoding="utf-8")
        return path

    def _write_configuration(self) -> None:
        layout = self.layout
        toml = config.containerd_config(layout, packages.program("runc"), packages.CNI_FOLDER)
        (layout.root / "containerd.toml").write_text(toml, encoding="utf-8")
        (layout.cni / "10-e2e.conflist").write_text(config.cni_conflist(layout), encoding="utf-8")
        kubelet = json.dumps(config.kubelet_config(layout, self.spec), indent=1)
        (layout.root / "kubelet.json").write_text(kubelet, encoding="utf-8")

    def _boot(self, handles: Components) -> None:
        handles.etcd.launch()
        handles.containerd.launch()
        handles.etcd.wait_ready()
        handles.apiserver.launch()
        handles.containerd.wait_ready()
        for image in base_archives():
            self.import_image(image)
        handles.apiserver.wait_ready()
        late = (handles.controller_manager, handles.scheduler, handles.kubelet)
        for process in late:
            process.launch()
        for process in late:
            process.wait_ready()
        self.wait_node_ready()
        for kind, name in (("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")):
            self.kube.wait(kind, name, lambda _: True)

    def wait_node_ready(self, timeout_s: float = 60.0) -> Object:
        """Wait until the node's condition Ready is True; return the Node."""

        def ready(node: Object) -> bool:
            conditions = node.get("status", {}).get("conditions", [])
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        return self.kube.wait("Node", self.node_name, ready, timeout_s=timeout_s)

    def stop(self, keep_folder: bool = False) -> None:
        """Kill every process and remove every trace. Not started is fine.

        ``keep_folder`` leaves files (logs) of a failed start until the next one.
        """
        if self._lock is None:
            return
        while self._clients:
            self._clients.pop().close()
        cleanup.remove(self.layout, keep_folder)
        for process in self.processes:
            process.kill()  # reaps it
        self._components, self._kube, self._authority = None, None, None
        self._spawned.clear()
        self._lock.close()
        self._lock = None

    def __enter__(self) -> "LocalCluster":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # What tests do to it

    def import_image(self, archive: Path) -> None:
        """Import an OCI or Docker archive; pods use it with ``imagePullPolicy: Never``."""
        ctr = self._need_programs().containerd / "ctr"
        socket_path = str(self.layout.containerd_socket)
        command = [str(ctr), "-a", socket_path, "-n", "k8s.io", "images", "import", str(archive)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(f"image {archive}: {done.stderr.strip()}")

    def exec_in_netns(
        self, argv: Sequence[str], **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in the namespace to its end; options are those of subprocess.run."""
        merged = {"capture_output": True, "text": True, "env": inside_environment(), **options}
        check = merged.pop("check", True)
        done: subprocess.CompletedProcess[str] = subprocess.run(
            self.netns.argv(argv), check=check, **merged
        )
        return done

    def spawn(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> ManagedProcess:
        """A handle for a program of the test's own (a driver) in the namespace; not started.

        Its log is beside the others and it is killed with the cluster.
        """
        log = self.layout.logs / f"{name}.log"
        process = ManagedProcess(name, list(argv), self.netns, log, dict(environment or {}))
        self._spawned.append(process)
        return process

    @contextmanager
    def api_down(self) -> Iterator[None]:
        """The API server is stopped for the body, and ready again after it."""
        self.apiserver.stop()
        try:
            yield
        finally:
            self.apiserver.start()

    def outage(self, seconds: float) -> None:
        """Stop the API server for so long, start it, wait until it is ready."""
        with self.api_down():
            time.sleep(seconds)

    def restart_kubelet(self) -> None:
        """SIGTERM, start, wait until it is healthy."""
        self.kubelet.restart()

    def kill_kubelet(self) -> None:
        """SIGKILL and start again, as a crash."""
        self.kubelet.kill()
        self.kubelet.start()

    def client(self, user: KeyPair | str, name: str) -> Kube:
        """A client for another user: a token, or a pair of ``issue``; it is closed by ``stop``.

        ``name`` names its kubeconfig, beside the administrator's.
        """
        path = self.write_kubeconfig(self.layout.pki / f"{name}.kubeconfig", user)
        return self._client(user, path)

    def issue(self, common_name: str, organization: str | None = None) -> KeyPair:
        """A client certificate of the cluster's CA for a user and a group."""
        return self._need_authority().issue(common_name, organization)

    def _client(self, user: KeyPair | str, path: Path) -> Kube:
        authority = self._need_authority().pair.certificate
        transport = inside(SERVICE_ADDRESS, self.netns, authority, user)
        kubectl = str(self._need_programs().kubernetes / "kubectl")
        client = Kube(transport, self.netns.argv([kubectl, f"--kubeconfig={path}"]))
        self._clients.append(client)
        return client

    def save_logs(self, folder: Path) -> None:
        """Copy all logs to a folder that outlives the cluster."""
        with suppress(FileNotFoundError):
            shutil.copytree(self.layout.logs, folder, dirs_exist_ok=True)


def unavailable() -> str | None:
    """Why no local cluster can run here, None if it can."""
    if not Path("/proc/self/ns/net").exists():
        return "the local cluster needs Linux with network namespaces"
    if os.geteuid() != 0:
        return "the local cluster needs root (namespaces, mounts, cgroups)"
    if Path("/var/lib/kubelet/config.yaml").exists():
        return "this machine is a node of another cluster (/var/lib/kubelet/config.yaml exists)"
    return None


def _check_machine() -> None:
    if reason := unavailable():
        raise SetupError(reason)
