"""Steps of shares, as the hardware's side carries them out through the supervisor."""

import pytest

from driver.errors import HardwareError, NotSupportedError
from driver.hw.card import Cards
from driver.hw.mps import MpsCards, SupervisorAwayError
from driver.model.steps import MpsNamespace, ServeMps
from tests.hw.supervisor import INFO, FakeSupervisor

GIB = 1 << 30


@pytest.fixture
def supervisor():
    return FakeSupervisor()


@pytest.fixture
def cards(node, supervisor):
    made = node("h100-80gb", 2)
    return Cards(made.nvml, made.root, mps=MpsCards(supervisor))


@pytest.fixture
def serve(cards):
    return ServeMps(cards.discover().gpus[0].uuid, 79 * GIB, 100, 2)


@pytest.fixture
def space(serve):
    return MpsNamespace(serve.gpu, "claim_0", 14 * GIB, 25)


def test_a_card_is_served_and_no_longer(cards, supervisor, serve):
    assert not cards.present(serve)
    cards.do(serve)
    cards.do(serve)
    assert cards.present(serve)
    (state,) = supervisor.states.values()
    assert (state.spec.gpu, state.spec.memory_limit) == (serve.gpu, 79 * GIB)
    assert (state.spec.compute_percent, state.spec.protocol) == (100, 2)
    assert cards.mps.cards() == {serve.gpu: state}
    cards.undo(serve)
    cards.undo(serve)
    assert not cards.present(serve)
    assert supervisor.states == {}


def test_a_card_that_is_served_otherwise_is_not_as_wanted(cards, serve):
    cards.do(ServeMps(serve.gpu, 40 * GIB, 100, 2))
    assert not cards.present(serve)


def test_a_dead_daemon_is_not_present_and_cannot_be_made(cards, supervisor, serve):
    cards.do(serve)
    supervisor.die(serve.gpu, "exited with status 1")
    assert not cards.present(serve)
    with pytest.raises(HardwareError, match=f"MPS of {serve.gpu}.*exited with status 1"):
        cards.do(serve)


def test_a_namespace_is_made_and_deleted(cards, supervisor, serve, space):
    assert not cards.present(space)
    cards.undo(space)  # its card is not served: there is nothing
    cards.do(serve)
    cards.do(space)
    assert cards.present(space)
    assert not cards.present(MpsNamespace(space.gpu, space.name, GIB, 25))
    cards.undo(space)
    cards.undo(space)
    assert not cards.present(space)
    assert supervisor.spaces[serve.gpu] == {}


@pytest.mark.parametrize("action", ["do", "undo", "present"])
def test_a_supervisor_that_is_away_or_refuses_is_said_with_the_card(
    cards, supervisor, serve, space, action
):
    for step in (serve, space):
        supervisor.away, supervisor.refuses = "no answer at /run/x: nobody listens there", ""
        with pytest.raises(SupervisorAwayError, match="nobody listens there"):
            getattr(cards, action)(step)
        supervisor.away, supervisor.refuses = "", "read back 40960M, set 81920M"
        with pytest.raises(HardwareError, match="read back 40960M"):
            getattr(cards, action)(step)
    with pytest.raises(HardwareError, match=f"MPS of {serve.gpu}"):
        cards.do(serve)


def test_without_a_supervisor_every_step_says_which_setting_is_missing(node, serve):
    made = node("h100-80gb", 2)
    cards = Cards(made.nvml, made.root)
    assert not cards.mps.configured
    with pytest.raises(NotSupportedError, match="--mps-socket"):
        cards.do(serve)
    with pytest.raises(NotSupportedError, match="MPS of this node"):
        cards.mps.info()


def test_the_supervisor_tells_of_itself_and_of_changes(cards, supervisor, serve):
    assert cards.mps.configured
    assert cards.mps.info() == INFO
    before, none = cards.mps.changes(0, 0.0)
    assert none == {}
    cards.do(serve)
    after, found = cards.mps.changes(before, 0.0)
    assert after > before
    assert list(found) == [serve.gpu]
