"""The socket of the probes and metrics, and what a probe answers.

The socket listens before ``driver.http`` is loaded: a probe that comes early waits for its answer.
"""

import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether all is well, and if not, why."""

    ok: bool
    reasons: tuple[str, ...] = ()


def listen(address: str) -> socket.socket:
    """Bind ``host:port``; port 0 picks one.

    Without a host it listens on IPv4 and IPv6: the kubelet probes the pod's own address.
    Raises OSError naming the address when it cannot be bound, ValueError when malformed.
    """
    host, port = split_address(address)
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(
            f"cannot listen on {address} for health and metrics: {error.strerror}; "
            "--http-address chooses another one, an empty one turns it off"
        ) from error


def split_address(address: str) -> tuple[str, int]:
    """``host:port``, ``:port`` or ``[v6]:port``; raises ValueError with the text for the user."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--http-address {address!r} is not host:port with a port up to 65535")
    return host.strip("[]"), int(port)
