"""etcd and an API server, without a node: for what is asked of the API alone."""

from e2e.cluster.components import Components
from e2e.cluster.local import LocalCluster


class ControlPlane(LocalCluster):
    """A cluster of which no more than etcd and kube-apiserver are started (3 s).

    Needs kube-apiserver alone of its version's programs.
    """

    NEEDED = ("kube-apiserver", "containerd", "etcd")

    def _boot(self, handles: Components) -> None:
        handles.etcd.start()
        handles.apiserver.start()
