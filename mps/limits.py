"""Setting limits and reading them back, in both protocols."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mps.frontend import ControlError, FrontEnd
from mps.layout import SERVER
from mps.protocol import MIB, CardSpec, Namespace

# What the front end prints for a limit: whole G from 1 GiB on, cut down (535 to 555: 1536M is
# stored and `1G` printed), so a difference below 1 GiB cannot be seen.
_MEMORY = re.compile(r"(\d+)([GM])")
_UNSET = ("", "-", "unset", "none")


def sent(limit: int) -> str:
    """Bytes as the program takes them: always whole M: it reads 1.5G as 1M, 512K as 512M."""
    return f"{limit // MIB}M"


def same_memory(limit: int | None, shown: str) -> bool:
    """Whether what the program shows can be ``limit``."""
    match = _MEMORY.fullmatch(shown.strip())
    if limit is None or match is None:
        return limit is None and shown.strip().lower() in _UNSET
    mib = limit // MIB
    number, unit = int(match[1]), match[2]
    return number == (mib // 1024 if unit == "G" else mib)


def same_percent(percent: int | None, shown: str, unset: float | None) -> bool:
    """Whether what the program shows is ``percent``; ``unset`` is what stands for no limit."""
    try:
        found = float(shown.strip().rstrip("%"))
    except ValueError:
        return percent is None and shown.strip().lower() in _UNSET
    return found == (unset if percent is None else percent)


def differing(spec: CardSpec | Namespace, memory: str, percent: str) -> str | None:
    """What was read back if it is not what ``spec`` wants."""
    wrong = []
    if not same_memory(spec.memory_limit, memory):
        wrong.append(f"memory limit {memory.strip() or 'unset'}, wanted {_wanted(spec)}")
    if not same_percent(spec.compute_percent, percent, unset=100.0):
        limit = spec.compute_percent
        wrong.append(f"thread percentage {percent.strip()}, wanted {limit or 'none'}")
    return "; ".join(wrong) or None


def _wanted(spec: CardSpec | Namespace) -> str:
    return "none" if spec.memory_limit is None else sent(spec.memory_limit)


def limits_environment(spec: CardSpec) -> dict[str, str]:
    """The defaults for a server that starts before they are set: clients of a daemon that died
    may be waiting. The percentage becomes the daemon's default; servers inherit both."""
    found: dict[str, str] = {}
    if spec.protocol == 3:  # there a namespace's limits are not those of the default one
        return found
    if spec.memory_limit is not None:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={sent(spec.memory_limit)}"
    if spec.compute_percent is not None:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(spec.compute_percent)
    return found


class Defaults:
    """The defaults of a card's daemon; ``wrong`` reads them, ``put`` sets and reads them."""

    def __init__(self, front: FrontEnd, spec: CardSpec) -> None:
        self._front = front
        self._spec = spec

    def put(self) -> None:
        """Raises ControlError if they are not what the spec wants afterwards."""
        if self._spec.protocol == 3:
            self._put_3()
        else:
            self._front.ask(*self._commands())
        if found := self.wrong():
            raise ControlError(f"the control daemon took other defaults: {found}")

    def _commands(self) -> Iterable[str]:
        limit, percent = self._spec.memory_limit, self._spec.compute_percent
        memory = "0M" if limit is None else sent(limit)  # 0M unsets
        yield f"set_default_device_pinned_mem_limit 0 {memory}"  # ordinal: the one visible card
        yield f"set_default_active_thread_percentage {100 if percent is None else percent}"

    def _put_3(self) -> None:
        names = {row[0] for row in _rows(self._front, "server", "list")}
        if SERVER not in names:
            self._front.call("server", "create", SERVER, f"--allowed-devices={self._spec.gpu}")
        if words := _options(self._spec):
            self._front.call("server", "set", SERVER, *words)

    def wrong(self) -> str | None:
        """What differs from the spec now; also the probe of a daemon's health.

        Raises:
            ControlError: it does not answer.
        """
        if self._spec.protocol == 3:
            rows = {row[0]: row for row in _namespaces(self._front)}
            if "default" not in rows:
                return f"server {SERVER} is not there"
            return differing(self._spec, rows["default"][3], rows["default"][4])
        lines = self._front.ask(
            "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"
        )
        if not lines or len(lines) > 2:
            raise ControlError(f"the control daemon answered {lines!r}; wanted its two defaults")
        return differing(self._spec, "".join(lines[1:]), lines[0])


class Namespaces:
    """The namespaces of a card under protocol 3."""

    def __init__(self, front: FrontEnd, pipe: Path) -> None:
        self._front = front
        self._pipe = pipe

    def names(self) -> set[str]:
        """Those that exist. Raises ControlError."""
        return {row[0] for row in _namespaces(self._front)} - {"default"}

    def all(self) -> tuple[Namespace, ...]:
        """Those that exist, limits as they are shown: whole GiB from 1 GiB on. Raises
        ControlError."""
        rows = (row for row in _namespaces(self._front) if row[0] != "default")
        return tuple(Namespace(row[0], _shown(row[3]), _percent(row[4])) for row in rows)

    def match(self, wanted: Mapping[str, Namespace]) -> None:
        """These exist and no others. Raises ControlError."""
        there = self.names()
        for name in there - set(wanted):
            self.remove(name)
        for name in set(wanted) - there:
            self.put(wanted[name])

    def put(self, wanted: Namespace) -> None:
        """It exists with these limits. Raises ControlError if not."""
        if wanted.name not in self.names():
            self._front.call("namespace", "create", wanted.name, f"--server={SERVER}")
        if words := _options(wanted):
            self._front.call("namespace", "set", wanted.name, f"--server={SERVER}", *words)
        rows = {row[0]: row for row in _namespaces(self._front)}
        if wanted.name not in rows:
            raise ControlError(f"namespace {wanted.name} was not made")
        if found := differing(wanted, rows[wanted.name][3], rows[wanted.name][4]):
            raise ControlError(f"namespace {wanted.name} took other limits: {found}")

    def remove(self, name: str) -> None:
        """It is gone. Raises ControlError if not."""
        if name in self.names():
            self._front.call("namespace", "delete", name, f"--server={SERVER}", "--force")
            if name in self.names():
                raise ControlError(f"namespace {name} is still there")


def _shown(memory: str) -> int | None:
    match = _MEMORY.fullmatch(memory)
    return None if match is None else int(match[1]) * MIB * (1024 if match[2] == "G" else 1)


def _percent(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _options(spec: CardSpec | Namespace) -> list[str]:
    words = []
    if spec.memory_limit is not None:
        words.append(f"--pinned-memory-limit={sent(spec.memory_limit)}")
    if spec.compute_percent is not None:
        words.append(f"--active-thread-percentage={spec.compute_percent}")
    return words


def _namespaces(front: FrontEnd) -> list[list[str]]:
    """name, server, server-status, pinned-memory-limit, active-thread-percentage, …"""
    rows = _rows(front, "namespace", "list", f"--server={SERVER}")
    if short := [row for row in rows if len(row) < 5]:
        raise ControlError(f"`namespace list` answered {','.join(short[0])!r}; wanted 7 columns")
    return rows


def _rows(front: FrontEnd, *words: str) -> list[list[str]]:
    lines = front.call(*words, "--format=csv,noheader")
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
