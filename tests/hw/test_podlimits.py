"""Pods and their limits of a card's memory. The driver's side is documented, not run: see
``driver.sim.nvml.limits``."""

from typing import get_args

import pytest

from driver.errors import HardwareError
from driver.hw.card import Cards
from driver.hw.cgroups import PodCgroups, _search
from driver.hw.nvml import Nvml
from driver.hw.podlimits import PodLimits
from driver.model.steps import LimitPod
from driver.sim import cgroups, control
from driver.sim.store import Store

MIB = 1 << 20
MAX = (1 << 64) - 1
SET, GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"
NOT_FOUND, NOT_SUPPORTED, NO_PERMISSION, LOST, UNKNOWN = 6, 3, 4, 15, 999


def uid(n):
    return f"{n:08x}-1111-4000-8000-000000000000"


@pytest.fixture
def new(node):
    """A node with R615 and cgroup v2, where the kubelet runs pod 1."""
    made = node(driver_version="615.71.09")
    cgroups.add_pod(made.root / "sys/fs/cgroup", uid(1))
    return made


def limits(new, index=0):
    return [(each.soft, each.hard) for each in Store(new.root).read().gpu(index).memory_limits]


def step(new, pod=1, memory=7 * MIB):
    return LimitPod(new.uuids()[0], uid(pod), memory)


# Where pods are ----------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
@pytest.mark.parametrize("below", ["", "kubelet"])
def test_pods_of_every_class_are_found(tmp_path, driver, below):
    known = PodCgroups(tmp_path)
    for n, qos in enumerate(get_args(cgroups.QosClass)):
        made = cgroups.add_pod(tmp_path, uid(n), qos, driver, below)
        assert known.find(uid(n)) == made
    assert known.find(uid(7)) is None
    assert known.problem() == ""


def test_pods_of_several_kubelets_are_found_and_one_that_goes_is_missed(tmp_path):
    known = PodCgroups(tmp_path)
    inner = cgroups.add_pod(tmp_path / "system.slice/docker-x.scope", uid(1))
    assert known.find(uid(1)) == inner
    outer = cgroups.add_pod(tmp_path, uid(2))
    assert known.find(uid(2)) is None  # not searched while what was found is there
    cgroups.remove_pod(inner.parents[1])
    assert known.find(uid(2)) == outer
    assert known.find(uid(1)) is None


def test_a_folder_that_goes_while_it_is_searched_is_empty(tmp_path):
    assert list(_search(tmp_path / "gone", 2)) == []


@pytest.mark.parametrize("name", ["", "../etc", "pod-1", uid(1) + "/..", uid(1).upper() + "x"])
def test_what_is_no_uid_is_nobodys(tmp_path, name):
    cgroups.add_pod(tmp_path, uid(1))
    assert PodCgroups(tmp_path).find(name) is None


def test_what_a_node_lacks_is_named(tmp_path):
    assert "is not a cgroup v2 hierarchy" in PodCgroups(tmp_path / "gone").problem()
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified/cgroup.controllers").touch()  # a hybrid
    assert "is not a cgroup v2 hierarchy" in PodCgroups(tmp_path).problem()
    (tmp_path / "cgroup.controllers").touch()
    assert "no kubepods cgroup below" in PodCgroups(tmp_path).problem()
    deep = tmp_path / "a/b/c/d/e"
    cgroups.add_pod(deep, uid(1))
    assert "no kubepods cgroup below" in PodCgroups(tmp_path).problem()


# Whether pods can be limited ---------------------------------------------------------------


def test_a_node_with_all_of_it_can(new):
    assert new.cards.pod_limit_problem(new.uuids()) == ""
    assert limits(new) == []


def test_what_is_missing_is_told(new):
    cards, gpus = new.cards, new.uuids()
    control.set_driver_version(new.root, "580.105.08")
    assert "FUNCTION_NOT_FOUND" in (cards.pod_limit_problem(gpus) or "")
    v1 = Cards(new.nvml, new.root, cgroups=new.root)
    assert "cgroup v2" in (v1.pod_limit_problem(gpus) or "")


def test_no_card_that_tells_is_no_answer(new):
    gpus = new.uuids()
    assert new.cards.pod_limit_problem([]) is None
    control.lose(new.root, 0)
    assert new.cards.pod_limit_problem(gpus[:1]) is None
    assert new.cards.pod_limit_problem(gpus) == ""


@pytest.mark.parametrize("code", [NOT_FOUND, NOT_SUPPORTED])
def test_a_getter_that_refuses_is_told_from_a_driver_that_cannot(new, code):
    """Where no limit is set, the misc back-end is said to answer so."""
    new.inject(GET, code, count=None)
    assert new.cards.pod_limit_problem(new.uuids()) == ""
    new.inject(SET, code, count=None)
    assert SET in (new.cards.pod_limit_problem(new.uuids()) or "")
    assert limits(new) == []


def test_missing_rights_are_told(new):
    new.inject(GET, NOT_FOUND, count=None)
    control.set_privileged(new.root, False)
    assert "NO_PERMISSION" in (new.cards.pod_limit_problem(new.uuids()) or "")


# The step ----------------------------------------------------------------------------------


def test_a_limit_is_set_changed_and_cleared(new):
    cards, first, other = new.cards, step(new), step(new, memory=5 * MIB)
    assert cards.has_cgroup(uid(1))
    assert not cards.present(first)
    cards.do(first)
    cards.do(first)
    assert limits(new) == [(7 * MIB, 7 * MIB)]
    assert (cards.present(first), cards.present(other)) == (True, False)
    cards.do(other)
    assert limits(new) == [(5 * MIB, 5 * MIB)]
    assert limits(new, 1) == []
    cards.undo(first)
    cards.undo(first)
    assert limits(new) == []
    assert not cards.present(other)


def test_a_pod_that_is_gone_has_nothing_to_limit(new):
    cards, gone = new.cards, step(new, pod=2)
    assert not cards.has_cgroup(uid(2))
    assert cards.present(gone)
    cards.do(gone)
    cards.undo(gone)
    assert limits(new) == []


@pytest.mark.parametrize("act", ["do", "undo"])
def test_a_pod_that_goes_meanwhile_is_no_failure_and_a_refusal_is_one(new, act, monkeypatch):
    cards, wanted = new.cards, step(new)
    cards.do(wanted)
    new.inject(SET, UNKNOWN, count=2)
    with pytest.raises(HardwareError, match=SET):
        getattr(cards, act)(wanted)
    pod = cgroups.add_pod(new.root / "sys/fs/cgroup", uid(1))
    monkeypatch.setattr(PodLimits, "_set", lambda *_: refuse_and_remove(pod))
    getattr(cards, act)(wanted)


def refuse_and_remove(pod):
    cgroups.remove_pod(pod)
    raise HardwareError(SET, "NOT_FOUND", NOT_FOUND)


@pytest.mark.parametrize("code", [NOT_FOUND, NOT_SUPPORTED])
def test_a_getter_that_refuses_means_that_there_is_no_limit(new, code):
    cards, wanted = new.cards, step(new)
    new.inject(GET, code, count=None)
    assert not cards.present(wanted)
    cards.undo(wanted)
    with pytest.raises(HardwareError, match="a soft limit of no and a hard limit of no bytes"):
        cards.do(wanted)


def test_other_errors_of_the_getter_are_raised(new):
    new.inject(GET, LOST)
    with pytest.raises(HardwareError, match="GPU_IS_LOST"):
        new.cards.present(step(new))


@pytest.mark.parametrize(
    ("soft", "hard", "well"),
    [
        (7 * MIB, 7 * MIB, True),
        (6 * MIB, 6 * MIB, True),  # rounded down to a page of the card
        (5 * MIB, 5 * MIB, False),
        (7 * MIB, 7 * MIB + 1, False),  # more than was promised
        (0, 7 * MIB, False),  # every process would be one that MPS may end
        (7 * MIB, MAX, False),
    ],
)
def test_what_is_read_back_decides(new, monkeypatch, soft, hard, well):
    cards, wanted = new.cards, step(new)
    real = PodLimits._set
    monkeypatch.setattr(
        PodLimits, "_set", lambda self, gpu, path, *_: real(self, gpu, path, soft, hard)
    )
    if well:
        cards.do(wanted)
    else:
        with pytest.raises(HardwareError, match=f"{7 * MIB} bytes was wanted"):
            cards.do(wanted)
    assert cards.present(wanted) is well


def test_a_limit_that_cannot_be_cleared_is_said(new, monkeypatch):
    cards, wanted = new.cards, step(new)
    cards.do(wanted)
    monkeypatch.setattr(PodLimits, "_set", lambda *_: None)
    with pytest.raises(HardwareError, match="none was wanted"):
        cards.undo(wanted)


def test_a_driver_without_the_calls_keeps_no_limit(new):
    """It was put back to an older one: a claim that was limited must end all the same."""
    pods = PodLimits(Nvml(), PodCgroups(new.root / "sys/fs/cgroup"))
    control.set_driver_version(new.root, "580.105.08")
    pods.clear(step(new))
    with pytest.raises(HardwareError):
        pods.set(step(new))
