"""A driver and a claim source that tests steer. State, not recorded expectations."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubeletplugin.claims import ClaimsUnavailableError
from kubeletplugin.contract import ClaimRef, ClaimRefusedError, PreparedDevice
from kubeletplugin.paths import plugin_paths
from kubeletplugin.plugin import KubeletPlugin

DRIVER = "gpu.example.com"


class ExpectedError(Exception):
    """Known to the stub driver."""


def ref(n: int = 0) -> ClaimRef:
    return ClaimRef("ns", f"claim-{n}", f"uid-{n}")


def device(n: int = 0) -> PreparedDevice:
    return PreparedDevice(("gpu",), "node-1", f"gpu-{n}", (f"example.com/claim=uid-{n}-0",))


@dataclass
class StubClaims:
    """Every claim exists and is allocated, unless ``objects`` says otherwise."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    away: bool = False
    reads: int = 0

    async def get(self, ref: ClaimRef, patience_s: float = 0) -> dict[str, Any]:
        self.reads += 1
        if self.away:
            raise ClaimsUnavailableError(f"{ref.namespace}/{ref.name} could not be read: away")
        if ref.name in self.objects:
            return self.objects[ref.name]
        return {
            "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
            "status": {"allocation": {"devices": {"results": []}}},
        }


def open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


@dataclass
class StubDriver:
    """Remembers what is prepared. ``gate`` holds prepare until it is set."""

    expected_errors: tuple[type[Exception], ...] = (ExpectedError,)
    prepared: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    gate: asyncio.Event = field(default_factory=open_gate)
    started: int = 0
    active: int = 0
    most_active: int = 0
    after: Callable[[str], None] = lambda _: None

    async def prepare(self, claim: dict[str, Any]) -> tuple[PreparedDevice, ...]:
        uid = claim["metadata"]["uid"]
        self.started += 1
        self.active += 1
        self.most_active = max(self.active, self.most_active)
        try:
            await self.gate.wait()
            if error := self.errors.get(uid):
                raise error
            number = int(uid.rsplit("-", 1)[1])
            return self.prepared.setdefault(uid, (device(number),))
        finally:
            self.active -= 1

    async def unprepare(self, claim: ClaimRef) -> None:
        if error := self.errors.get(claim.uid):
            raise error
        self.prepared.pop(claim.uid, None)

    async def recall(self, claim: ClaimRef) -> tuple[PreparedDevice, ...] | None:
        return self.prepared.get(claim.uid)


@dataclass
class StubPublisher:
    registered: bool = False
    resyncs: int = 0

    def set_registered(self, registered: bool) -> None:
        self.registered = registered

    def resync(self) -> None:
        self.resyncs += 1


@dataclass
class Done:
    """An Observer that keeps what it was told."""

    calls: list[tuple[str, str, str]] = field(default_factory=list)

    def claim_done(self, method: str, claim: ClaimRef, seconds: float, error: str) -> None:
        assert seconds >= 0
        self.calls.append((method, claim.uid, error))


def make_plugin(
    root: Path,
    driver: StubDriver | None = None,
    claims: StubClaims | None = None,
    observer: Done | None = None,
    instance: str | None = None,
) -> KubeletPlugin:
    return KubeletPlugin(
        DRIVER,
        plugin_paths(DRIVER, kubelet_root=root, instance=instance),
        driver or StubDriver(),
        claims or StubClaims(),
        StubPublisher(),
        observer,
    )


def publishing(plugin: KubeletPlugin) -> StubPublisher:
    """The stand-in that ``make_plugin`` gave it."""
    assert isinstance(plugin._publisher, StubPublisher)
    return plugin._publisher


def refusal(text: str) -> ClaimRefusedError:
    return ClaimRefusedError(text)
