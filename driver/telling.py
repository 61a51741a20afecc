"""Events about claims and about the node."""

from kubeletplugin.contract import ClaimRef
from kubeletplugin.events import EventRecorder


class Telling:
    """Names the objects for the recorder. Never raises, never waits."""

    def __init__(self, recorder: EventRecorder, node_name: str) -> None:
        self._recorder = recorder
        self._node = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_name}

    def claim_event(self, ref: ClaimRef, kind: str, reason: str, note: str) -> None:
        """``kind`` is Normal or Warning."""
        regarding = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
        }
        self._recorder.emit(regarding, kind, reason, note)

    def node_event(self, kind: str, reason: str, note: str) -> None:
        self._recorder.emit(self._node, kind, reason, note)
