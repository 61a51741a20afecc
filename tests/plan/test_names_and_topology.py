import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.model.gpu import Fabric, Nvlink
from driver.model.ids import GpuUuid, PciAddress
from driver.plan.names import device_names
from driver.plan.topology import nvlink_groups
from tests.plan.builders import gpu, inventory, linked, pci, switched

A, B = GpuUuid("GPU-3f0c2d5a-1b7e-4d0a-9c55-0"), GpuUuid("GPU-3F0C2D5A-1b7f-4d0a-9c55-0")


def groups(*cards):
    """By card number, what its group is called."""
    found = nvlink_groups(inventory(*cards))
    return {card.minor: found[card.uuid] for card in cards if card.uuid in found}


def test_a_device_is_named_by_the_first_eight_digits_of_the_uuid():
    assert device_names([A]) == {A: "gpu-3f0c2d5a"}


def test_cards_that_share_eight_digits_make_every_name_longer():
    other = GpuUuid("GPU-00000001-0000-0000-0000-000000000000")
    assert device_names([A, B, other]) == {
        A: "gpu-3f0c2d5a1b7e4d0a",
        B: "gpu-3f0c2d5a1b7f4d0a",
        other: "gpu-0000000100000000",
    }


def test_cards_that_share_even_sixteen_digits_get_all_of_them():
    first, second = (GpuUuid(f"GPU-3f0c2d5a-1b7e-4d0a-9c55-{n:012x}") for n in (1, 2))
    assert set(device_names([first, second]).values()) == {
        "gpu-3f0c2d5a1b7e4d0a9c55000000000001",
        "gpu-3f0c2d5a1b7e4d0a9c55000000000002",
    }


@given(st.lists(st.uuids(), unique=True, max_size=20))
def test_names_are_unique_dns_labels(uuids):
    names = device_names(GpuUuid(f"GPU-{uuid}") for uuid in uuids)
    assert len(set(names.values())) == len(uuids)
    assert all(len(name) <= 63 and name.replace("-", "").isalnum() for name in names.values())


def test_cards_behind_switches_are_one_group():
    assert groups(*map(switched, range(8))) == dict.fromkeys(range(8), "nvswitch")


def test_the_group_behind_switches_keeps_its_name_when_its_first_card_is_lost():
    assert groups(*map(switched, range(1, 8))) == dict.fromkeys(range(1, 8), "nvswitch")


def test_cliques_of_a_fabric_are_groups_of_their_own():
    left, right = Fabric("cluster", 0), Fabric("cluster", 1)
    cards = [switched(n, fabric=left if n < 2 else right) for n in range(4)]
    first, second = f"nvswitch-{pci(0)}", f"nvswitch-{pci(2)}"
    assert groups(*cards) == {0: first, 1: first, 2: second, 3: second}


def test_a_bridge_joins_two_cards():
    cards = [linked(0, 2), linked(1, 3), linked(2, 0), linked(3, 1), gpu(4)]
    assert groups(*cards) == {0: pci(0), 2: pci(0), 1: pci(1), 3: pci(1)}


@pytest.mark.parametrize(
    "cards",
    [
        pytest.param([gpu(0), gpu(1)], id="no-links"),
        pytest.param([linked(0, 1), linked(1)], id="one-end-reports-the-link"),
        pytest.param([linked(0, 1)], id="the-partner-is-not-there"),
        pytest.param([linked(0, 0)], id="a-link-to-itself"),
    ],
)
def test_a_card_that_reaches_no_other_has_no_group(cards):
    assert groups(*cards) == {}


def test_a_hybrid_cube_becomes_two_groups_of_four():
    quads = [{0, 1, 2, 3}, {4, 5, 6, 7}]
    cards = [
        linked(n, *(next(quad for quad in quads if n in quad) - {n}), (n + 4) % 8)
        for n in range(8)
    ]
    assert groups(*cards) == {n: pci(0) if n < 4 else pci(4) for n in range(8)}


def test_a_chain_is_cut_where_cards_do_not_reach_each_other():
    assert groups(linked(0, 1), linked(1, 0, 2), linked(2, 1)) == {0: pci(0), 1: pci(0)}


def test_addresses_sort_by_number():
    low, high = PciAddress("2000:01:00.0"), PciAddress("10000:01:00.0")
    near = gpu(1, pci=low, nvlink=Nvlink(4, (3, 0), False, frozenset({high})))
    far = gpu(2, pci=high, nvlink=Nvlink(4, (3, 0), False, frozenset({low})))
    assert groups(far, near) == {1: low, 2: low}


@given(
    st.integers(2, 8),
    st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))),
    st.randoms(use_true_random=False),
)
def test_members_of_a_group_all_reach_each_other_in_any_order_of_cards(count, edges, random):
    peers = {n: {b for a, b in edges | {(b, a) for a, b in edges} if a == n} for n in range(count)}
    cards = [linked(n, *peers[n]) for n in range(count)]
    found = groups(*cards)
    for n, name in found.items():
        members = {m for m, other in found.items() if other == name}
        assert len(members) > 1
        assert members - {n} <= peers[n]
    random.shuffle(cards)
    assert groups(*cards) == found
