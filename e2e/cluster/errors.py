"""Errors of the test cluster. Each text names what was wanted and what would change it."""


class ClusterError(Exception):
    """Base class of everything the harness raises on purpose."""


class SetupError(ClusterError):
    """Something this machine must have is missing (a program, a right, a package)."""


class BuildError(ClusterError):
    """A program could not be built from its Go module."""


class ClusterInUseError(ClusterError):
    """Another process of this machine holds a cluster of the same name."""


class ProcessError(ClusterError):
    """A program of the cluster ended or did not become ready. Carries the end of its log."""


class WaitTimeoutError(ClusterError):
    """A condition was not met in time. Carries what was seen last."""


class KubeError(ClusterError):
    """The API server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
