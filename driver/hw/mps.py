"""Shares under MPS, through the node's MPS supervisor: it owns the control daemons and their
settings, the driver owns the hardware."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from driver.errors import HardwareError, NotSupportedError
from driver.model.ids import GpuUuid
from driver.model.steps import MpsNamespace, ServeMps
from driver.model.view import MpsFolders
from mps.layout import SERVER
from mps.protocol import (
    CardSpec,
    CardState,
    MpsError,
    MpsUnreachableError,
    Namespace,
    SupervisorInfo,
)

_NO_SOCKET = "no MPS supervisor is set up: start it (`aliquot mps serve`) and set --mps-socket"


class Client(Protocol):
    """The part of ``mps.client.MpsClient`` that is used. Calls block and raise MpsError."""

    def info(self) -> SupervisorInfo: ...
    def ensure(self, spec: CardSpec) -> CardState: ...
    def stop(self, gpu: str) -> None: ...
    def cards(self) -> tuple[CardState, ...]: ...
    def ensure_namespace(
        self, gpu: str, name: str, memory_limit: int | None, compute_percent: int | None
    ) -> Path: ...
    def delete_namespace(self, gpu: str, name: str) -> None: ...
    def namespaces(self, gpu: str) -> tuple[Namespace, ...]: ...
    def changes(self, after: int, wait_s: float) -> tuple[int, tuple[CardState, ...]]: ...


class SupervisorAwayError(HardwareError):
    """The MPS supervisor does not answer; its daemons may well live."""


class MpsCards:
    """The steps of shares. Any thread may call; calls about one card come one after another.

    Every method raises HardwareError: SupervisorAwayError where nobody answers, else with what
    the supervisor refused.
    """

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self.folders: dict[GpuUuid, MpsFolders] = {}
        """Of every card that was ever seen served; pods live on while the supervisor is away."""

    @property
    def configured(self) -> bool:
        """Whether this node is to have a supervisor at all."""
        return self._client is not None

    def info(self) -> SupervisorInfo:
        """Who answers, and what its control program can do."""
        with self._asking("of this node") as client:
            return client.info()

    def cards(self) -> dict[GpuUuid, CardState]:
        """Every card that has, or should have, a control daemon."""
        with self._asking("of this node") as client:
            return self._note(client.cards())

    def changes(self, after: int, wait_s: float) -> tuple[int, dict[GpuUuid, CardState]]:
        """``cards``, as soon as they differ from revision ``after``, or after ``wait_s``; with the
        revision to go on from."""
        with self._asking("of this node") as client:
            revision, states = client.changes(after, wait_s)
        return revision, self._note(states)

    # Steps -------------------------------------------------------------------------------

    def serve(self, step: ServeMps) -> None:
        """The card's daemon runs with the defaults of ``step`` when this returns."""
        with self._asking(step.gpu) as client:
            state = client.ensure(_spec(step))
        self._note([state])
        if not state.running:
            raise HardwareError(
                f"MPS of {step.gpu}", f"the control daemon does not run: {state.failure}"
            )

    def stop(self, gpu: GpuUuid) -> None:
        """No daemon of the card runs when this returns; its clients are gone with it."""
        with self._asking(gpu) as client:
            client.stop(gpu)

    def serves(self, step: ServeMps) -> bool:
        state = self.cards().get(step.gpu)
        return state is not None and state.running and state.spec == _spec(step)

    def add(self, step: MpsNamespace) -> None:
        with self._asking(step.gpu) as client:
            client.ensure_namespace(step.gpu, step.name, step.memory_limit, step.compute_percent)

    def remove(self, step: MpsNamespace) -> None:
        """A card that is not served has no namespaces: nothing to do."""
        if step.gpu in self.cards():
            with self._asking(step.gpu) as client:
                client.delete_namespace(step.gpu, step.name)

    def has(self, step: MpsNamespace) -> bool:
        wanted = Namespace(step.name, step.memory_limit, step.compute_percent)
        with self._asking(step.gpu) as client:
            return wanted in client.namespaces(step.gpu)

    # -------------------------------------------------------------------------------------

    def _note(self, states: Iterable[CardState]) -> dict[GpuUuid, CardState]:
        found = {GpuUuid(state.spec.gpu): state for state in states}
        self.folders |= {gpu: _folders(state) for gpu, state in found.items()}
        return found

    @contextmanager
    def _asking(self, what: str) -> Iterator[Client]:
        call = f"MPS {what}" if what.startswith("of") else f"MPS of {what}"
        if self._client is None:
            raise NotSupportedError(call, _NO_SOCKET)
        try:
            yield self._client
        except MpsUnreachableError as error:
            raise SupervisorAwayError(call, str(error)) from error
        except MpsError as error:
            raise HardwareError(call, str(error)) from error


def _spec(step: ServeMps) -> CardSpec:
    return CardSpec(step.gpu, step.memory_limit, step.compute_percent, step.protocol)


def step_of(spec: CardSpec) -> ServeMps:
    """The step that starts such a daemon."""
    return ServeMps(GpuUuid(spec.gpu), spec.memory_limit, spec.compute_percent, spec.protocol)


def _folders(state: CardState) -> MpsFolders:
    shm = None if state.shm is None else str(state.shm)
    return MpsFolders(str(state.pipe_directory), shm, SERVER if state.spec.protocol == 3 else None)
