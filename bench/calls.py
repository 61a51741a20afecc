"""Timed calls to DRA sockets, as the kubelet makes them: after an idle pause, one claim a call.

The client is the blocking one: it adds less of its own to what is measured than an event loop.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from kubeletplugin.contract import ClaimRef
from kubeletplugin.proto import dra_v1_pb2 as pb
from kubeletplugin.proto import dra_v1_pb2_grpc

PAUSE_S = 0.02  # the kubelet's calls come after idle time, which costs every runtime something
DEADLINE_S = 45.0  # the kubelet's
KINDS = ("prepare", "again", "unprepare")


class BenchError(Exception):
    """A driver refused what it should do; the text names driver, claim and its answer."""


@dataclass
class Socket:
    """One driver's DRA socket (v1)."""

    label: str
    stub: Any

    def empty(self) -> float:
        """Milliseconds of a call without claims: what any call costs."""
        started = time.perf_counter()
        self.stub.NodePrepareResources(pb.NodePrepareResourcesRequest(), timeout=DEADLINE_S)
        return _since(started)

    def prepare(self, ref: ClaimRef) -> float:
        """Milliseconds. Raises BenchError when the answer is an error."""
        request = pb.NodePrepareResourcesRequest(claims=[_claim(ref)])
        return self._timed(self.stub.NodePrepareResources, request, ref)

    def paused_prepare(self, ref: ClaimRef, pause_s: float = PAUSE_S) -> float:
        """``prepare`` after idle time."""
        time.sleep(pause_s)
        return self.prepare(ref)

    def unprepare(self, ref: ClaimRef) -> float:
        """Milliseconds. Raises BenchError when the answer is an error."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_claim(ref)])
        return self._timed(self.stub.NodeUnprepareResources, request, ref)

    def prepare_at_once(self, refs: Sequence[ClaimRef]) -> tuple[float, list[float]]:
        """All claims in calls of their own, sent together: milliseconds to the last answer, and
        of each call. Raises BenchError."""
        started = time.perf_counter()
        answered: SimpleQueue[float] = SimpleQueue()
        calls = []
        for ref in refs:
            request = pb.NodePrepareResourcesRequest(claims=[_claim(ref)])
            call = self.stub.NodePrepareResources.future(request, timeout=DEADLINE_S)
            call.add_done_callback(lambda _: answered.put(_since(started)))
            calls.append((ref, call))
        for ref, call in calls:
            self._check(call.result(), ref)
        took = sorted(answered.get() for _ in calls)
        return took[-1], took

    def _timed(self, call: Callable[..., Any], request: Any, ref: ClaimRef) -> float:
        started = time.perf_counter()
        answer = call(request, timeout=DEADLINE_S)
        took = _since(started)
        self._check(answer, ref)
        return took

    def _check(self, answer: Any, ref: ClaimRef) -> None:
        if ref.uid not in answer.claims:
            raise BenchError(f"{self.label}: no answer for claim {ref}")
        if error := answer.claims[ref.uid].error:
            raise BenchError(f"{self.label}: claim {ref}: {error}")


@contextmanager
def connected(label: str, path: Path) -> Iterator[Socket]:
    """A socket that is connected. Raises BenchError when nobody serves it."""
    options = (("grpc.default_authority", "localhost"),)
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=10)
        except grpc.FutureTimeoutError:
            raise BenchError(f"{label}: nobody serves {path}; is the driver running?") from None
        yield Socket(label, dra_v1_pb2_grpc.DRAPluginStub(channel))


@dataclass
class Times:
    """Milliseconds by kind of call, in the order of the claims."""

    empty: list[float] = field(default_factory=list)
    prepare: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    unprepare: list[float] = field(default_factory=list)

    def of(self, kind: str) -> list[float]:
        found: list[float] = getattr(self, kind)
        return found


def one_after_another(
    work: Sequence[tuple[Socket, Sequence[ClaimRef]]], pause_s: float = PAUSE_S
) -> Mapping[str, Times]:
    """Prepare, repeat, unprepare; the drivers take turns claim by claim, and the one that begins
    changes, so that whatever else the machine does hits all of them alike."""
    times = {socket.label: Times() for socket, _ in work}
    for number, claims in enumerate(zip(*(refs for _, refs in work), strict=True)):
        turns = [(socket, ref) for (socket, _), ref in zip(work, claims, strict=True)]
        shift = number % len(turns)
        for socket, ref in turns[shift:] + turns[:shift]:
            _one(socket, ref, times[socket.label], pause_s)
    return times


def _one(socket: Socket, ref: ClaimRef, times: Times, pause_s: float) -> None:
    steps = (
        (times.empty, socket.empty),
        (times.prepare, lambda: socket.prepare(ref)),
        (times.again, lambda: socket.prepare(ref)),
        (times.unprepare, lambda: socket.unprepare(ref)),
    )
    for found, call in steps:
        time.sleep(pause_s)
        found.append(call())


def _claim(ref: ClaimRef) -> Any:
    return pb.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1e3
