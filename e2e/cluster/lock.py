"""One process at a time may hold a cluster's name on this machine."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.errors import ClusterInUseError
from e2e.cluster.layout import Layout


def take(layout: Layout) -> socket.socket:
    """Hold the name until the socket is closed; it is closed with its process, however that ends.

    Raises ClusterInUseError if another process holds it.
    """
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0{layout.unique}")  # abstract: no file, nothing to clean up
    except OSError as error:
        lock.close()
        how = "choose another name with ALIQUOT_E2E_NAME"
        raise ClusterInUseError(f"a process runs cluster {layout.name}; {how}") from error
    return lock


@contextmanager
def held(layout: Layout) -> Iterator[None]:
    """Hold the name for the body."""
    with take(layout):
        yield
