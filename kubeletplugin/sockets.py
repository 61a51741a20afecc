"""A gRPC server on a Unix socket that notices when its socket file is gone."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc.aio

SOCKET_MODE = 0o600


class SocketServer:
    """Serves on ``path``. The caller holds the lock of the folder (``kubeletplugin.lock``)."""

    def __init__(self, path: Path, register: Callable[[grpc.aio.Server], None]) -> None:
        self.path = path
        self._register = register
        self._server: grpc.aio.Server | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def running(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        """Bind and serve; a socket file left by a dead process is removed first.

        Raises:
            OSError: the socket cannot be bound; the text names path and folder.
        """
        with suppress(FileNotFoundError):
            self.path.unlink()
        server = grpc.aio.server()
        self._register(server)
        try:
            server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise OSError(
                f"cannot bind socket {self.path}: {error}; the folder must exist, be writable and "
                "lie on a file system that allows Unix sockets"
            ) from error
        self.path.chmod(SOCKET_MODE)
        await server.start()
        self._server, self._identity = server, _identity(self.path)

    def intact(self) -> bool:
        """Whether the socket file in the folder is still ours."""
        return self._identity is not None and _identity(self.path) == self._identity

    async def ensure(self, grace_s: float = 5.0) -> bool:
        """Bind again if the file is gone or another one. Returns whether that was needed."""
        if self.intact():
            return False
        await self.stop(grace_s)  # first: stopping deletes the file of that name, whoever made it
        await self.start()
        return True

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new calls, let running ones answer for ``grace_s`` seconds, remove the socket."""
        server, self._server, self._identity = self._server, None, None
        if server is not None:
            await server.stop(grace_s)
            with suppress(FileNotFoundError):
                self.path.unlink()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
