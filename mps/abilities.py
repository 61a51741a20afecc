"""What the control program of this node can do, found out by trying.

Options differ between versions and an unknown one ends the program without a word, so each is
tried once in a folder of its own, again when the file changes (a driver upgrade).
"""

import contextlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from mps import layout
from mps.daemon import Daemon, Host, NotReadyError
from mps.frontend import ControlError
from mps.layout import CardPaths

Options = tuple[str, ...]

# The first that works is taken. Multi-user: 555 has the long name, CUDA 13 also -M, protocol 3
# (R615) -m; all of them only for root. Without it clients of different users take turns.
_TRIED: Mapping[int, tuple[Options, ...]] = {
    2: (("-multiuser-server",), ("-M",), ()),
    3: (("-p", "3", "-m"), ("-p", "3")),
}
_MULTI_USER = frozenset({"-multiuser-server", "-M", "-m"})
_SAID = re.compile(r"\b(\d{3})\.\d+")
_BUILT_IN = re.compile(rb"(?<![\d.])(\d{3})\.\d{2,3}\.\d{2}(?![\d.])")  # 535 to 555 lack -v


@dataclass(frozen=True, slots=True)
class Abilities:
    """``options`` has what a daemon of each usable protocol is started with."""

    version: str | None = None
    options: Mapping[int, Options] = field(default_factory=dict)
    failure: str | None = None

    @property
    def multi_user(self) -> bool:
        return any(_MULTI_USER.intersection(each) for each in self.options.values())


class Explorer:
    """Finds the abilities, once for each program file. Any thread."""

    def __init__(self, host: Host, paths: CardPaths) -> None:
        self._daemon = Daemon(host, paths)
        self._lock = threading.Lock()
        self._known: tuple[object, Abilities] | None = None

    def abilities(self) -> Abilities:
        """What the file that is there now can do; takes 0.1 s the first time."""
        with self._lock:
            file = self._fingerprint()
            if self._known is None or self._known[0] != file:
                found = self._explore()
                if found.failure is not None:
                    return found  # tried again next time
                self._known = (file, found)
            return self._known[1]

    def options(self, protocol: int) -> Options:
        """What a daemon of this protocol is started with. Raises ControlError if it cannot be."""
        found = self.abilities()
        if found.failure is not None:
            raise ControlError(found.failure)
        if protocol not in found.options:
            raise ControlError(
                f"MPS protocol {protocol} is not offered by this control program (version "
                f"{found.version or 'unknown'}); it came with R615"
            )
        return found.options[protocol]

    def clear(self) -> None:
        """End what a killed supervisor was trying out. Raises ControlError, OSError."""
        with self._lock:
            self._clean()

    def _fingerprint(self) -> object:
        try:
            found = self._daemon.host.program.file.stat()
        except OSError as error:
            return str(error)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _explore(self) -> Abilities:
        if why := self._daemon.host.program.missing:
            return Abilities(failure=why)
        try:
            options, failure = self._options()
            version = self._version()
            self._clean()
        except (ControlError, OSError) as error:
            options, version, failure = {}, None, str(error)
        if not options:
            failure = f"control program {self._daemon.host.program.file} does not work: {failure}"
        return Abilities(version, options, None if options else failure)

    def _options(self) -> tuple[dict[int, Options], str | None]:
        """For each protocol the first that works, and why one did not."""
        options: dict[int, Options] = {}
        failure = None
        for protocol, tries in _TRIED.items():
            for words in tries:
                failure = self._try(words, protocol)
                if failure is None:
                    options[protocol] = words
                    break
            if not options:  # without protocol 2 nothing works
                break
        return options, failure

    def _clean(self) -> None:
        self._daemon.end(None)
        layout.remove_folders(self._daemon.paths)
        self._daemon.host.cgroups.remove(self._daemon.paths.group)

    def _try(self, words: Options, protocol: int) -> str | None:
        """None if a daemon works with these options, else what happened."""
        try:
            self._daemon.end(self._daemon.start(words, None, protocol))
        except NotReadyError:
            raise
        except ControlError as error:
            return str(error)
        return None

    def _version(self) -> str | None:
        """By option -v (CUDA 13), else as the file has it built in."""
        said = None
        with contextlib.suppress(ControlError):
            said = _SAID.search(" ".join(self._daemon.front.call("-v")))
        if said is not None:
            return said[1]
        built_in = _BUILT_IN.search(self._daemon.host.program.file.read_bytes())
        return None if built_in is None else built_in[1].decode("ascii")
