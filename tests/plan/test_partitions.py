from dataclasses import replace
from itertools import combinations

import pytest

from api.policy import parse_policy
from driver.model.devices import MigPartition, WholeGpu
from driver.model.gpu import MigMode
from driver.model.mig import MigInstance, Placement
from driver.plan.allocatable import allocatable, node_devices
from driver.plan.counters import consumed, fits, memory_slices, most, totals, uncovered
from driver.plan.names import profile_label
from driver.plan.partitions import Adopted, profile_ranks, spot
from driver.sim.partition import fits as hardware_takes
from driver.sim.profiles import PROFILES
from driver.sim.world import GpuInstance
from tests.plan.builders import cuttable, gpu, inventory, partition

BOARDS = ["a30", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200"]
ON, OFF = MigMode(current=True, pending=True), MigMode(current=False, pending=False)


def policy(modes="[gpu, mig]", **more):
    rule = ", ".join(
        ["select: {all: true}", f"modes: {modes}", *(f"{k}: {v}" for k, v in more.items())]
    )
    return parse_policy(f"gpus: [{{{rule}}}]", "policy.yaml")


BOTH = policy()


def kinds(devices):
    return {type(each) for each in devices}


@pytest.mark.parametrize("board", BOARDS)
def test_every_placement_of_every_profile_is_offered_beside_the_whole_card(board):
    found = allocatable(inventory(cuttable(0, board)), BOTH)
    cut = [each for each in found if isinstance(each, MigPartition)]
    assert {(each.profile.name, each.start) for each in cut} == {
        (row.name, start) for row in PROFILES[board].gpu_instance_profiles for start in row.starts
    }
    assert len({each.name for each in found}) == len(found)


@pytest.mark.parametrize(
    ("modes", "toggle", "mode", "board", "whole", "cut"),
    [
        pytest.param(
            "[gpu, mig]", None, OFF, "h100-80gb", True, True, id="the-first-claim-decides"
        ),
        pytest.param("[gpu, mig]", None, ON, "h100-80gb", True, True, id="whatever-the-mode"),
        pytest.param("[gpu, mig]", "never", OFF, "h100-80gb", True, False, id="never-off"),
        pytest.param("[gpu, mig]", "never", ON, "h100-80gb", False, True, id="never-on"),
        pytest.param("[gpu, mig]", "whenIdle", ON, "a100-40gb", False, True, id="ampere-on"),
        pytest.param("[gpu, mig]", "whenIdle", OFF, "a100-40gb", True, False, id="ampere-off"),
        pytest.param("[mig]", None, OFF, "h100-80gb", False, True, id="only-partitions"),
        pytest.param("[gpu]", None, OFF, "h100-80gb", True, False, id="only-whole"),
        pytest.param("[gpu]", None, ON, "h100-80gb", False, False, id="only-whole-and-mode-on"),
        pytest.param("[gpu]", "whenIdle", ON, "h100-80gb", True, False, id="may-turn-it-off"),
        pytest.param("[]", None, ON, "h100-80gb", False, False, id="not-offered"),
    ],
)
def test_what_a_card_offers_by_policy_and_mode(modes, toggle, mode, board, whole, cut):
    more = {} if toggle is None else {"migModeToggle": toggle}
    node = inventory(cuttable(0, board, mig_mode=mode))
    found = kinds(allocatable(node, policy(modes, **more)))
    assert found == {kind for kind, there in ((WholeGpu, whole), (MigPartition, cut)) if there}


def test_what_is_adopted_is_known_by_profile_and_placement():
    instance = MigInstance(9, Placement(4, 4), 2)
    assert spot(instance) == (9, Placement(4, 4))
    assert str(instance.placement) == "memory slices 4 to 7"


def test_a_card_without_profiles_has_no_memory_slices():
    assert memory_slices(gpu(0)) == 0


def test_a_card_that_cannot_be_cut_is_offered_whole_by_the_same_policy():
    assert kinds(allocatable(inventory(gpu(0, mig_mode=None)), BOTH)) == {WholeGpu}


def test_without_counters_a_card_is_offered_whole_or_as_it_is():
    node = inventory(cuttable(0), cuttable(1, mig_mode=ON))
    card = node.gpus[1].uuid
    adopted = Adopted({card: {(9, Placement(4, 4))}})
    rule = policy(adoptExisting="true")
    found = allocatable(node, rule, adopted, features=frozenset())
    assert [each.name for each in found] == ["gpu-00000000", "gpu-00000001-mig-3g-40gb-4"]


def test_the_whole_card_is_not_watched_for_its_mode_where_nobody_cuts_it():
    assert [each.toggle for each in node_devices(inventory(cuttable(0)), policy("[gpu]"))[:1]] == [
        None
    ]


def test_what_is_adopted_stands_in_its_place_and_bars_what_overlaps():
    node = inventory(cuttable(0, mig_mode=ON))
    adopted = Adopted({node.gpus[0].uuid: {(9, Placement(4, 4))}})
    found = allocatable(node, policy(adoptExisting="true"), adopted)
    assert WholeGpu not in kinds(found)
    cut = [each for each in found if isinstance(each, MigPartition)]
    assert [each.name for each in cut if each.adopted] == ["gpu-00000000-mig-3g-40gb-4"]
    others = [each.placement for each in cut if not each.adopted]
    assert others
    assert not any(Placement(4, 4).overlaps(each) for each in others)


def test_what_is_adopted_is_offered_only_while_the_policy_says_so():
    node = inventory(cuttable(0, mig_mode=ON))
    adopted = Adopted({node.gpus[0].uuid: {(9, Placement(4, 4))}})
    found = allocatable(node, BOTH, adopted)
    assert not any(each.adopted for each in found if isinstance(each, MigPartition))


def test_small_profiles_come_first_and_media_variants_last():
    assert profile_ranks([cuttable(0), cuttable(1, "a100-40gb")]) == (
        "1g.5gb",
        "1g.10gb",
        "2g.10gb",
        "3g.20gb",
        "4g.20gb",
        "1g.20gb",
        "2g.20gb",
        "7g.40gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
        "1g.5gb+me",
        "1g.10gb+me",
    )


def test_profile_names_that_differ_in_their_signs_have_labels_that_differ():
    names = ["1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb+gfx", "1g.24gb+me.all"]
    labels = [profile_label(name) for name in names]
    assert labels == [
        "1g-24gb",
        "1g-24gb-me",
        "1g-24gb-nome",
        "1g-24gb-gfx",
        "1g-24gb-me-all",
    ]


def test_the_order_does_not_depend_on_how_the_cards_were_counted():
    cards = [cuttable(n) for n in range(4)]
    forward = allocatable(inventory(*cards), BOTH)
    assert allocatable(inventory(*reversed(cards)), BOTH) == forward


# Counters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("board", BOARDS)
def test_totals_cover_every_combination_of_partitions(board):
    card = cuttable(0, board)
    assert uncovered(card) == ()
    for name in ("memory", "multiprocessors", "copy-engines", "decoders"):
        assert totals(card)[name] >= most(card.mig_profiles, name) > 0


@pytest.mark.parametrize("board", BOARDS)
def test_counters_allow_two_partitions_exactly_where_the_hardware_does(board):
    card = cuttable(0, board)
    there = totals(card)
    rows = {row.name: row for row in PROFILES[board].gpu_instance_profiles}
    cut = [each for each in allocatable(inventory(card), BOTH) if isinstance(each, MigPartition)]
    for a, b in combinations(cut, 2):
        needs = [consumed(each, there) for each in (a, b)]
        both = {key: sum(need.get(key, 0) for need in needs) for key in {*needs[0], *needs[1]}}
        present = [GpuInstance(1, a.profile.id, a.start, a.profile.size)]
        takes = hardware_takes(PROFILES[board], present, rows[b.profile.name], b.start)
        assert fits(both, there) == takes, (a.name, b.name)


@pytest.mark.parametrize("board", BOARDS)
def test_the_whole_card_fits_beside_no_partition(board):
    card = cuttable(0, board)
    there = totals(card)
    for each in node_devices(inventory(card), BOTH)[1:]:
        need = consumed(each, there)
        assert not fits({key: n + there[key] for key, n in need.items()}, there)


def test_a_kind_that_the_totals_do_not_cover_is_left_out():
    """A driver whose largest profile has less of something than its small ones together."""
    card = cuttable(0)
    odd = tuple(each if each.slices > 1 else _with_copy(each, 9) for each in card.mig_profiles)
    card = cuttable(0, mig_profiles=odd)
    assert uncovered(card) == ("copy-engines",)
    assert "copy-engines" not in totals(card)
    assert "copy-engines" not in consumed(partition(card, "1g.10gb"), totals(card))
    assert "copy-engines" not in totals(card, [partition(card, "1g.10gb", adopted=True)])


def _with_copy(profile, count):
    return replace(profile, engines=replace(profile.engines, copy=count))


def test_adopted_partitions_take_theirs_from_the_totals():
    card = cuttable(0, mig_mode=ON)
    media = partition(card, "1g.10gb+me", 6, adopted=True)
    there = totals(card, [media])
    assert there["ofa-engines"] == 0
    assert there["memory"] == totals(card)["memory"] - media.profile.memory
    assert not fits(consumed(partition(card, "1g.10gb+me", 0), there), there)
    assert fits(consumed(partition(card, "1g.10gb", 0), there), there)
    assert consumed(media, there) == {}
