"""Device health for the kubelet: the latest list, sent again before it gets stale."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from kubeletplugin.contract import DeviceHealth

# The kubelet takes a device for unknown after 30 s without news (KEP-4680); its own default.
RESEND_S = 10.0


class HealthBoard:
    """Holds the complete list. A watcher gets it at once, on change and every ``resend_s``."""

    def __init__(self, resend_s: float = RESEND_S) -> None:
        self._resend_s = resend_s
        self._devices: tuple[DeviceHealth, ...] = ()
        self._changed = asyncio.Event()
        self._closed = False

    def set(self, devices: Iterable[DeviceHealth]) -> None:
        devices = tuple(devices)
        if devices != self._devices:
            self._devices = devices
            self._wake()

    def close(self) -> None:
        """End all streams: a server cannot stop gracefully while they are open."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()  # each watcher waits on the one it has seen

    async def watch(self) -> AsyncIterator[tuple[DeviceHealth, ...]]:
        while not self._closed:
            changed = self._changed
            yield self._devices
            try:
                async with asyncio.timeout(self._resend_s):
                    await changed.wait()
            except TimeoutError:
                continue
