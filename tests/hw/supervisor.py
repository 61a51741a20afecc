"""An MPS supervisor in memory, with its client's interface, for what only concerns its caller."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from mps.protocol import (
    CardSpec,
    CardState,
    MpsRefusedError,
    MpsUnreachableError,
    Namespace,
    SupervisorInfo,
)

INFO = SupervisorInfo(4000, 1.0, "/usr/bin/nvidia-cuda-mps-control", "615", (2, 3), True)


@dataclass
class FakeSupervisor:
    """``away`` and ``refuses`` are texts of what every call then raises."""

    run_dir: Path = Path("/run/mps")
    told: SupervisorInfo = INFO
    away: str = ""
    refuses: str = ""
    states: dict[str, CardState] = field(default_factory=dict)
    spaces: dict[str, dict[str, Namespace]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    revision: int = 1

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.away:
            raise MpsUnreachableError(self.away)
        if self.refuses:
            raise MpsRefusedError(self.refuses)

    def info(self) -> SupervisorInfo:
        self._called("info")
        return self.told

    def ensure(self, spec: CardSpec) -> CardState:
        self._called("ensure")
        pipe = self.run_dir / spec.gpu[4:12] / "pipe"
        self.states.setdefault(spec.gpu, CardState(spec, pipe, None, 77, 1.0, True, None, 0))
        self.revision += 1
        return self.states[spec.gpu]

    def stop(self, gpu: str) -> None:
        self._called("stop")
        self.states.pop(gpu, None)
        self.spaces.pop(gpu, None)
        self.revision += 1

    def cards(self) -> tuple[CardState, ...]:
        self._called("cards")
        return tuple(self.states.values())

    def ensure_namespace(
        self, gpu: str, name: str, memory_limit: int | None, compute_percent: int | None
    ) -> Path:
        self._called("ensure_namespace")
        self.spaces.setdefault(gpu, {})[name] = Namespace(name, memory_limit, compute_percent)
        return self.states[gpu].pipe_directory / "server" / name

    def delete_namespace(self, gpu: str, name: str) -> None:
        self._called("delete_namespace")
        self.spaces.get(gpu, {}).pop(name, None)

    def namespaces(self, gpu: str) -> tuple[Namespace, ...]:
        self._called("namespaces")
        return tuple(self.spaces.get(gpu, {}).values())

    def changes(self, after: int, wait_s: float) -> tuple[int, tuple[CardState, ...]]:
        self._called("changes")
        return self.revision, tuple(self.states.values())

    # What happens on the node ------------------------------------------------------------

    def die(self, gpu: str, why: str = "killed by signal 9") -> None:
        """The card's daemon dies and is not back yet."""
        self.states[gpu] = replace(self.states[gpu], running=False, failure=why, pid=None)
        self.revision += 1

    def recover(self, gpu: str) -> None:
        found = self.states[gpu]
        self.states[gpu] = replace(
            found, running=True, failure=None, pid=78, restarts=found.restarts + 1
        )
        self.revision += 1
