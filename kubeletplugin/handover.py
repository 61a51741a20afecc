"""How an instance gives way to the next one so that no call of the kubelet finds nobody.

The kubelet asks the instance that registered last, and one that it cannot reach costs a pod the
90 s until its next try. So the next one registers while this one still answers: its calls wait
until this one has finished and freed the node's state. Two locks say how far that is; the kernel
frees them with the process.

``turn``        who comes after the one that serves; it registers at once
``registered``  who was registered last
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from kubeletplugin.lock import InstanceLock

TURN_S = 0.5  # a standby looks every 0.1 s; without one nobody waits longer than this
REGISTER_S = 3.0  # the kubelet looks at its registry every second
_POLL_S = 0.05


class Handover:
    """``take_turn`` before anything, ``arrived`` when registered, ``give`` before stopping."""

    def __init__(self, folder: Path) -> None:
        self._turn = InstanceLock([folder / "turn.lock"])
        self._mark = folder / "registered.lock"
        self._registered = InstanceLock([self._mark])

    @property
    def known(self) -> bool:
        """Whether the kubelet has registered this or an earlier instance with these folders."""
        return self._mark.exists()

    def try_take_turn(self) -> bool:
        """Whether this instance is the next one now. Raises OSError as ``InstanceLock``."""
        return self._turn.try_acquire()

    async def take_turn(self) -> None:
        """Wait until it is."""
        await self._turn.acquire()

    def arrived(self) -> None:
        """The kubelet has registered this instance."""
        self._registered.try_acquire()

    def refused(self) -> None:
        """The kubelet does not take this instance: what an earlier one was told counts no more."""
        if self._registered.try_acquire():
            self._mark.unlink(missing_ok=True)
            self._registered.release()

    async def give(self) -> None:
        """Let the next instance register, and wait until the kubelet knows it.

        Returns soon where none is there, and in the end where it does not get that far.
        """
        self._turn.release()
        self._registered.release()
        if await _soon(lambda: _taken(self._turn), TURN_S):
            await _soon(lambda: self.known and _taken(self._registered), REGISTER_S)

    def retake(self) -> bool:
        """After a wiped folder. False: another instance was faster."""
        return self._turn.retake()

    def intact(self) -> bool:
        return self._turn.intact()

    def release(self) -> None:
        self._turn.release()
        self._registered.release()


def _taken(lock: InstanceLock) -> bool:
    if not lock.try_acquire():
        return True
    lock.release()
    return False


async def _soon(met: Callable[[], bool], within_s: float) -> bool:
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not met():
        if loop.time() >= end:
            return False
        await asyncio.sleep(_POLL_S)  # what another process does: nothing to await
    return True
