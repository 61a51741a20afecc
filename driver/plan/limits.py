"""Limits of pods: which pods a claim limits, and what a pod's limit is.

The driver keeps one limit for each cgroup and card. A claim's part of it is a step; what is set is
the sum of the parts of all prepared claims that the pod has of the card.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from driver.errors import ClaimError
from driver.model.claims import ClaimState, Record
from driver.model.ids import GpuUuid
from driver.model.steps import LimitPod, Step

CGROUP = "cgroup"  # of api.v1alpha1.ENFORCEMENT


def given(record: Record) -> dict[GpuUuid, int]:
    """How much memory of which card, in bytes, each pod of the claim gets; empty where nothing is
    limited by cgroup."""
    found: dict[GpuUuid, int] = {}
    for held in record.held:
        share = held.share
        if share is not None and share.limits.memory == CGROUP:
            found[held.gpu] = found.get(held.gpu, 0) + (share.memory_limit or 0)
    return found


def limited(record: Record, pods: Iterable[str]) -> Record:
    """The record with steps for exactly these pods, by UID; they come last, so they go first."""
    wanted = sorted(set(pods))
    steps: list[Step] = [step for step in record.steps if not isinstance(step, LimitPod)]
    steps += [LimitPod(gpu, pod, size) for gpu, size in given(record).items() for pod in wanted]
    return replace(record, steps=tuple(steps))


def limited_pods(record: Record) -> frozenset[str]:
    """UIDs of the pods that the record has steps for."""
    return frozenset(step.pod for step in record.steps if isinstance(step, LimitPod))


def check_pods(record: Record, named: Collection[str], there: Collection[str]) -> None:
    """At least one pod of a claim that is being prepared must be there to be limited: the kubelet
    makes its cgroup before it asks. Others may come later.

    Raises:
        ClaimError: none of the pods that the claim is reserved for (``named``) has a cgroup.
    """
    if given(record) and not there:
        which = f"pods {', '.join(sorted(named))}" if named else "no pod (status.reservedFor)"
        raise ClaimError(
            f"claim {record.claim} is reserved for {which}, and none has a cgroup on this node, "
            "so its memory cannot be limited as published (memoryLimit: cgroup); the kubelet must "
            "run with --cgroups-per-qos, and the node plugin see its cgroups (--cgroup-root)"
        )


def effective(step: Step, record: Record, others: Iterable[Record]) -> Step:
    """What doing ``step`` of ``record`` comes to beside the prepared claims among ``others``."""
    if not isinstance(step, LimitPod):
        return step
    return replace(step, memory=step.memory + _parts(step, record, others))


def rest(step: Step, record: Record, others: Iterable[Record]) -> LimitPod | None:
    """What is left to the pod when ``record`` is undone; None: no limit is."""
    if not isinstance(step, LimitPod):
        return None
    left = _parts(step, record, others)
    return replace(step, memory=left) if left else None


def _parts(step: LimitPod, record: Record, others: Iterable[Record]) -> int:
    """Of other claims that are prepared: one that was begun or half released is rolled back."""
    return sum(
        each.memory
        for other in others
        if other.claim.uid != record.claim.uid and other.state is ClaimState.COMPLETED
        for each in other.steps
        if isinstance(each, LimitPod) and (each.gpu, each.pod) == (step.gpu, step.pod)
    )
