"""What is done for one card: serve it, stop it, take it over, bring it back. One thread a card.

Intent is on disk before a daemon is started, and the record is removed after the last trace, so
a supervisor that is killed anywhere leaves nothing that its successor does not find.
"""

import contextlib
import logging
from dataclasses import replace

from mps import layout
from mps.controllog import ControlLog, cut_to
from mps.daemon import Daemon, how_it_ended, spec_from
from mps.frontend import ControlError
from mps.layout import CardPaths
from mps.limits import Defaults, Namespaces
from mps.node import STEADY_S, Node, pause_s, told
from mps.proc import Process, wall_clock
from mps.protocol import CardSpec, CardState, MpsRefusedError, Namespace
from mps.state import Record

log = logging.getLogger(__name__)

SILENCES = 3  # probes without an answer, then a daemon without servers is replaced
_TICK_S = 1.0
_SERVERS_GRACE_S = 2.0  # servers of a dead daemon may notice and end by themselves


class Keeper:
    """Not thread-safe: the card's lane calls it. ``now`` is a monotonic clock in seconds."""

    def __init__(self, paths: CardPaths, node: Node, record: Record | None = None) -> None:
        self._node = node
        self._paths = paths
        self._daemon = Daemon(node.host, paths)
        self._log = ControlLog(paths.control_log)
        self._process: Process | None = None
        self._started: float | None = None  # seconds since 1970
        self._failure: str | None = None
        self._clear_at: float | None = None  # when the failure is told of no longer
        self._silent = 0
        self._fails = 0
        self._up_since = self._next_try = self._next_probe = 0.0
        self.record = record
        self.state: CardState | None = None

    # calls

    def ensure(self, spec: CardSpec, now: float) -> CardState:
        """Serve the card. Raises MpsRefusedError; a card that was not served then still is not."""
        if self.record is not None and self.record.stopping:
            self.stop(now)
        first = self.record is None
        if self.record is not None and self.record.spec != spec:
            raise MpsRefusedError(
                f"{spec.gpu} is served with {told(self.record.spec)}, not with {told(spec)}; "
                "stop it first: these are limits of all its clients"
            )
        if self._process is None or not self._process.alive:
            if first:
                self._save(Record(spec, self._node.boot, namespaces={}))
            self._start_or_say(now, first)
        elif self._silent:
            self._check(now)
        if self._silent:
            raise MpsRefusedError(f"MPS control daemon of {spec.gpu}: {self._failure}")
        assert self.state is not None  # noqa: S101 - set with the record
        return self.state

    def _start_or_say(self, now: float, first: bool) -> None:
        gpu = self._gpu
        try:
            if self._process is not None:
                self._died(now)
            self._start(now)
        except ControlError as error:
            if first:
                self._give_up(str(error), now)
            else:
                self._failed(str(error), now)
            raise MpsRefusedError(f"MPS control daemon of {gpu}: {error}") from error

    def _give_up(self, why: str, now: float) -> None:
        """Nothing is left of a first start that failed, or what is left goes later."""
        try:
            self._erase(now)
        except ControlError as error:
            if self.record is not None:
                self._remember(replace(self.record, stopping=True))
            self._failed(f"{why}; {error}", now)

    def stop(self, now: float) -> None:
        """Nothing of the card is left. Raises MpsRefusedError; it is tried again by itself."""
        if self.record is None:
            return
        gpu = self._gpu
        self._save(replace(self.record, stopping=True))
        try:
            if self._process is not None:
                self._daemon.quit(self._process, self._ask_to_quit, 1.0)
            self._erase(now)
        except ControlError as error:
            self._failed(f"it cannot be stopped: {error}", now)
            raise MpsRefusedError(f"MPS control daemon of {gpu} {self._failure}") from error

    def _ask_to_quit(self) -> None:
        seconds = self._node.quit_timeout_s
        if self.record is not None and self.record.spec.protocol == 3:
            self._daemon.front.call("-q", more_s=seconds)
        else:
            self._daemon.front.tell(f"quit -t {seconds}", more_s=seconds)

    def ensure_namespace(self, wanted: Namespace, now: float) -> str:
        """Returns the directory of its clients. Raises MpsRefusedError."""
        folder = self._paths.namespace(wanted.name)
        self.ensure(self._with_namespaces().spec, now)
        before = self._with_namespaces()
        self._save(before.with_namespace(wanted))
        try:
            self._namespaces.put(wanted)
        except ControlError as error:
            self._take_back(before, wanted.name)
            raise MpsRefusedError(f"{self._gpu}: {error}") from error
        return str(folder)

    def _take_back(self, before: Record, name: str) -> None:
        """As it was before; the next probe mends what resists."""
        self._remember(before)
        with contextlib.suppress(ControlError):
            if name in before.claims:
                self._namespaces.put(before.claims[name])
            else:
                self._namespaces.remove(name)

    def delete_namespace(self, name: str) -> None:
        """Raises MpsRefusedError."""
        if self.record is None or self.record.spec.protocol != 3:
            return
        self._save(self.record.without_namespace(name))
        try:
            if self._process is not None and self._process.alive:
                self._namespaces.remove(name)
        except ControlError as error:
            raise MpsRefusedError(f"{self._gpu}: {error}") from error

    def _with_namespaces(self) -> Record:
        if self.record is None or self.record.stopping:
            raise MpsRefusedError("the card is not served; call ensure first")
        if self.record.spec.protocol != 3:
            raise MpsRefusedError(f"{self._gpu} is served with protocol 2; namespaces need 3")
        return self.record

    # life

    def take_over(self, now: float) -> None:
        """Find the daemon that an earlier supervisor started, and go on with it."""
        record = self.record
        if record is None:
            return
        self._process = self._choose(record)
        if self._process is None:
            self._found_dead(record, now)
        else:
            log.info("took over control daemon %d of %s", self._process.pid, self._gpu)
            self._remember(replace(record, daemon=self._process, boot=self._node.boot))
            self._up(now)
            self._check(now)
        self._publish()

    def _choose(self, record: Record) -> Process | None:
        """The recorded one, else the oldest one with the right spec; all others are ended."""
        live = sorted(self._daemon.daemons(), key=lambda one: (one != record.daemon, one.start))
        chosen = next((one for one in live if spec_from(one) == record.spec), None)
        for one in self._daemon.candidates():
            if one in live and one != chosen:
                log.warning("ending a second control daemon, %d, of %s", one.pid, self._gpu)
                one.end(1.0)
        return chosen

    def _found_dead(self, record: Record, now: float) -> None:
        if record.daemon is not None and record.boot == self._node.boot and not record.stopping:
            self._remember(replace(record, restarts=record.restarts + 1, daemon=None))
            self._failed(f"control daemon {record.daemon.pid} ended unseen", now)
        self._next_try = now

    def tick(self, now: float) -> float:
        """Look after the daemon; returns in how many seconds to look again."""
        if self.record is None:
            return _TICK_S
        if self._process is not None and not self._process.alive:
            self._died(now)
        if self._process is None or self.record.stopping:
            self._try(now)
            return max(0.0, min(self._next_try - now, _TICK_S))
        self._watch(now)
        return _TICK_S

    def _try(self, now: float) -> None:
        if self.record is None or now < self._next_try:
            return
        try:
            if self.record.stopping:
                self.stop(now)
            else:
                self._start(now)
        except ControlError as error:
            self._failed(str(error), now)
        except MpsRefusedError:
            self._next_try = max(self._next_try, now + _TICK_S)  # it told of it

    def _watch(self, now: float) -> None:
        news = self._log.news()
        if news.failed is not None:
            self._tell(f"{news.failed}; see {self._paths.logs}", now)
        if now >= self._next_probe:
            self._check(now)
            for path in self._paths.logs.rglob("server.log"):
                cut_to(path)
        if self._clear_at is not None and (now >= self._clear_at or news.ready):
            self._failure = self._clear_at = None
            self._publish()

    def _check(self, now: float) -> None:
        """Probe the daemon; put right what somebody changed (up to 535 any user may)."""
        if self.record is None:
            return
        self._next_probe = now + self._node.probe_interval_s
        try:
            defaults = Defaults(self._daemon.front, self.record.spec)
            wrong = defaults.wrong()
            if wrong is not None:
                defaults.put()
                self._tell(f"its defaults were changed and are set again: {wrong}", now)
            self._match_namespaces(self.record)
        except ControlError as error:
            self._unanswered(str(error), now)
            return
        if self._silent:
            self._silent = 0
            self._tell("it did not answer for a while", now)

    def _match_namespaces(self, record: Record) -> None:
        """Those of the record and no others; of a lost record those that are there."""
        if record.spec.protocol != 3:
            return
        if record.namespaces is None:
            there = {one.name: one for one in self._namespaces.all()}
            self._remember(replace(record, namespaces=there))
        else:
            self._namespaces.match(record.namespaces)

    def _unanswered(self, why: str, now: float) -> None:
        """Clients may still compute: with servers alive it is told of and left alone."""
        if self._process is not None and not self._process.alive:
            self._died(now)
            return
        self._silent += 1
        self._failure, self._clear_at = f"it does not answer: {why}", None
        self._next_probe = now + min(_TICK_S, self._node.probe_interval_s)
        if self._silent >= SILENCES and not self._daemon.rest(self._process):
            with contextlib.suppress(ControlError):
                self._daemon.end(self._process)
        self._publish()

    # steps

    def _start(self, now: float) -> None:
        record = self.record
        if record is None:
            return
        options = self._node.explorer.options(record.spec.protocol)
        self._daemon.end(None)
        process = self._daemon.start(options, record.spec, record.spec.protocol)
        try:
            self._remember(replace(record, daemon=process, boot=self._node.boot))
            Defaults(self._daemon.front, record.spec).put()
            for wanted in record.claims.values():
                self._namespaces.put(wanted)
        except ControlError:
            self._daemon.end(process)
            self._remember(record)
            raise
        self._process = process
        self._up(now)
        self._publish()

    def _up(self, now: float) -> None:
        if self._process is not None:
            self._started = wall_clock(self._process.start)
        self._silent = 0
        self._up_since = now
        self._next_probe = now + self._node.probe_interval_s
        self._log.to_end()
        if self._failure is not None:
            self._clear_at = now + self._node.settle_s

    def _died(self, now: float) -> None:
        if self._process is None or self.record is None:
            return
        if self.record.stopping:  # it was asked to; what cannot be removed is told of
            self._process = self._started = None
            return
        pid = self._process.pid
        text = f"control daemon {pid} {how_it_ended(pid)}"
        lived = now - self._up_since
        self._fails = 0 if lived >= STEADY_S else self._fails + 1
        self._process = self._started = None
        self._remember(replace(self.record, daemon=None, restarts=self.record.restarts + 1))
        self._failed(text, now, pause_s(self._fails - 1 if self._fails else 0))
        if self._daemon.candidates():
            self._next_try = max(self._next_try, now + _SERVERS_GRACE_S)

    def _failed(self, text: str, now: float, wait_s: float | None = None) -> None:
        """The card is not served; tried again after ``wait_s``, longer each time."""
        log.error("MPS control daemon of %s: %s", self._gpu, text)
        if wait_s is None:
            self._fails += 1
            wait_s = pause_s(self._fails)
        self._failure, self._clear_at = text, None
        self._next_try = now + wait_s
        self._publish()

    def _tell(self, text: str, now: float) -> None:
        """A fault of a daemon that runs: shown for a while."""
        log.warning("MPS control daemon of %s: %s", self._gpu, text)
        self._failure, self._clear_at = text, now + self._node.settle_s
        self._publish()

    def _erase(self, now: float) -> None:
        """Remove every trace, the record last. Raises ControlError."""
        try:
            self._daemon.end(self._process)
            layout.remove_folders(self._paths)
            self._node.host.cgroups.remove(self._paths.group)
            self._node.store.remove(self._paths.id)
        except OSError as error:
            raise ControlError(f"{error.filename}: {error.strerror or error}") from error
        self.record = self._process = self._started = self._failure = self._clear_at = None
        self._fails = 0
        self._next_try = now
        self._publish()

    def _save(self, record: Record) -> None:
        """Raises MpsRefusedError; nothing has changed then."""
        try:
            self._node.store.put(self._paths.id, record)
        except OSError as error:
            raise MpsRefusedError(
                f"the state of {record.spec.gpu} cannot be written: {error.strerror or error} "
                f"({error.filename}); mend it or choose another --state-dir"
            ) from error
        self.record = record

    def _remember(self, record: Record) -> None:
        """As ``_save``, where a full disk must not keep a daemon from coming back: what is only
        remembered is found by looking as well."""
        self.record = record
        try:
            self._node.store.put(self._paths.id, record)
        except OSError as error:
            log.warning("state of %s is not written: %s", record.spec.gpu, error)

    @property
    def _namespaces(self) -> Namespaces:
        return Namespaces(self._daemon.front, self._paths.pipe)

    @property
    def _gpu(self) -> str:
        return "" if self.record is None else self.record.spec.gpu

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def _publish(self) -> None:
        record, process = self.record, self._process
        running = process is not None and self._silent < SILENCES - 1
        state = None
        if record is not None:
            state = CardState(
                spec=record.spec,
                pipe_directory=self._paths.pipe,
                shm=self._daemon.shm,
                pid=None if process is None else process.pid,
                started=self._started,
                running=running,
                failure=self._failure,
                restarts=record.restarts,
            )
        if state != self.state:
            self.state = state
            self._node.changed()
