"""The driver as the kubelet's side knows it before its state is loaded."""

from typing import Any

from driver.plugin import GpuDriver
from kubeletplugin.contract import ClaimRef


class Forward:
    """Stands for the driver until the lock is held and its state is loaded."""

    expected_errors = GpuDriver.expected_errors
    driver: GpuDriver

    async def prepare(self, claim: Any) -> Any:
        return await self.driver.prepare(claim)

    async def unprepare(self, claim: ClaimRef) -> None:
        await self.driver.unprepare(claim)

    async def recall(self, claim: ClaimRef) -> Any:
        return await self.driver.recall(claim)
