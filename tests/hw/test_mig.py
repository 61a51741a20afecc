"""Partitions on simulated cards, through the real pynvml: made, found, repaired, destroyed."""

import pytest

from driver.errors import DeviceBusyError, HardwareError
from driver.hw.mig import MigCards
from driver.hw.nvml import Nvml
from driver.hw.profiles import profile_gb
from driver.model.gpu import Engines
from driver.model.mig import Placement
from driver.model.steps import CreateMigDevice, EnsureMigMode
from driver.model.units import from_mib
from driver.sim import control
from driver.sim.profiles import PROFILES
from driver.sim.store import Store

PARTITIONED = ["a30", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200"]


class Card:
    """The first card of a node, in MIG mode."""

    def __init__(self, node, profile="h100-80gb", mode=True):
        self.node = node(profile, 2)
        self.root = self.node.root
        self.gpu = self.node.discover().gpus[0]
        self.pauses: list[float] = []
        self.mig = MigCards(self.node.nvml, self.root, self.pauses.append)
        if mode:
            self.mig.ensure_mode(EnsureMigMode(self.gpu.uuid, True, True))
            self.gpu = self.node.discover().gpus[0]

    def step(self, name, start):
        profile = next(each for each in self.gpu.mig_profiles if each.name == name)
        place = Placement(start, profile.size)
        return CreateMigDevice(self.gpu.uuid, name, profile.id, place)

    def state(self):
        return Store(self.root).read().gpu(0)


@pytest.fixture
def card(node):
    return lambda *options, **more: Card(node, *options, **more)


@pytest.mark.parametrize("profile", PARTITIONED)
def test_profiles_are_read_as_the_board_has_them(card, profile):
    found = card(profile).gpu.mig_profiles
    rows = PROFILES[profile].gpu_instance_profiles
    assert {each.name: (each.enum, each.id, each.slices, each.size) for each in found} == {
        row.name: (row.profile, row.id, row.slices, row.size) for row in rows
    }
    by_enum = {each.enum: each for each in found}
    for row in rows:
        each = by_enum[row.profile]
        assert each.starts == row.starts
        assert each.instances == row.instances
        assert each.memory == from_mib(row.memory_mib)
        assert each.engines == Engines(
            row.copy_engines, row.decoders, row.encoders, row.jpeg, row.ofa
        )


def test_placements_are_told_with_mig_mode_off_but_not_on_ampere(card, node):
    assert len(card("h100-80gb", mode=False).gpu.mig_profiles) == 7


def test_an_ampere_card_out_of_mig_mode_has_no_profiles(card):
    ampere = card("a100-40gb", mode=False).gpu
    assert ampere.mig_profiles == ()
    assert ampere.engines.copy == 7  # told by the profiles all the same


def test_a_library_that_does_not_tell_names_gets_those_of_the_formula(card):
    first = card("a100-40gb")
    control.inject(first.root, "nvmlDeviceGetGpuInstanceProfileInfoV", 13, count=None)
    names = {each.name for each in first.node.discover().gpus[0].mig_profiles}
    assert names == {row.name for row in PROFILES["a100-40gb"].gpu_instance_profiles}


def test_a_card_that_does_not_tell_its_placements_is_still_there(card):
    first = card()
    control.inject(first.root, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", 999, gpu=0)
    gpus = first.node.discover().gpus
    assert [len(gpu.mig_profiles) for gpu in gpus] == [0, 7]


def test_the_figure_in_a_name_is_rounded_half_up():
    assert profile_gb(71168, 143771) == 71
    assert profile_gb(22528, 183359) == 23


@pytest.mark.parametrize("profile", PARTITIONED)
def test_every_placement_of_every_profile_is_made_and_destroyed(card, profile):
    first = card(profile)
    for kind in first.gpu.mig_profiles:
        for start in kind.starts:
            step = first.step(kind.name, start)
            assert not first.mig.present(step)
            first.mig.create(step)
            assert first.mig.present(step)
            first.mig.create(step)  # again is once
            (instance,) = first.mig.instances(first.gpu.uuid)
            assert (instance.profile_id, instance.placement) == (kind.id, step.placement)
            device = first.mig.device(first.gpu.uuid, step.placement)
            assert device.uuid.startswith("MIG-")
            assert abs(device.memory - kind.memory) <= from_mib(512)
            first.mig.destroy(step)
            first.mig.destroy(step)
            assert first.mig.instances(first.gpu.uuid) == ()
            assert first.mig.device(first.gpu.uuid, step.placement) is None


def test_the_nodes_of_a_partition_are_its_two_capabilities(card):
    first = card()
    step = first.step("1g.10gb", 2)
    first.mig.create(step)
    (instance,) = first.mig.instances(first.gpu.uuid)
    minor = 3 + 9 * instance.id
    nodes = first.mig.device(first.gpu.uuid, step.placement).nodes
    assert [(node.path, node.host_path, node.numbers, node.mode) for node in nodes] == [
        (f"/dev/nvidia-caps/nvidia-cap{n}", None, (235, n), 0o444) for n in (minor, minor + 1)
    ]


@pytest.mark.parametrize("text", [None, "Character devices:\n195 nvidia\n"])
def test_a_kernel_that_tells_no_capabilities_is_named(card, text):
    first = card()
    step = first.step("1g.10gb", 0)
    first.mig.create(step)
    devices = first.root / "proc/devices"
    if text is None:
        devices.unlink()
    else:
        devices.write_text(text)
    with pytest.raises(HardwareError, match="proc/devices"):
        first.mig.device(first.gpu.uuid, step.placement)


def test_a_capability_file_without_a_minor_is_named(card):
    first = card()
    step = first.step("7g.80gb", 0)
    first.mig.create(step)
    (path,) = (first.root / "proc/driver/nvidia/capabilities").glob("gpu0/mig/gi*/access")
    path.write_text("DeviceFileMode: 292\n")
    with pytest.raises(HardwareError, match="DeviceFileMinor"):
        first.mig.device(first.gpu.uuid, step.placement)


def test_an_instance_without_its_other_half_is_found_and_made_good(card):
    first = card()
    step = first.step("3g.40gb", 4)
    control.inject(first.root, "nvmlGpuInstanceCreateComputeInstance", 999)
    with pytest.raises(HardwareError):
        first.mig.create(step)
    (half,) = first.mig.instances(first.gpu.uuid)
    assert half.compute == ()
    assert not first.mig.present(step)
    assert first.mig.device(first.gpu.uuid, step.placement) is None
    first.mig.create(step)
    assert first.mig.present(step)


def test_an_instance_without_its_other_half_is_destroyed(card):
    first = card()
    step = first.step("3g.40gb", 4)
    control.inject(first.root, "nvmlGpuInstanceCreateComputeInstance", 999)
    with pytest.raises(HardwareError):
        first.mig.create(step)
    first.mig.destroy(step)
    assert first.mig.instances(first.gpu.uuid) == ()


def test_a_taken_place_is_refused_with_who_is_there(card):
    first = card()
    first.mig.create(first.step("2g.20gb", 4))
    with pytest.raises(
        HardwareError, match=r"memory slices 4 to 7.*taken by GPU instance .* 4 to 5"
    ):
        first.mig.create(first.step("3g.40gb", 4))


def test_what_a_card_has_only_once_is_refused_with_the_reason(card):
    first = card()
    first.mig.create(first.step("1g.10gb+me", 0))
    with pytest.raises(HardwareError, match=r"the place is free, but .*only once"):
        first.mig.create(first.step("1g.10gb+me", 3))


def test_another_profile_in_the_same_place_is_not_ours(card):
    first = card()
    there = first.step("1g.20gb", 2)
    first.mig.create(there)
    ours = first.step("2g.20gb", 2)
    assert not first.mig.present(ours)
    first.mig.destroy(ours)
    assert first.mig.present(there)
    with pytest.raises(HardwareError, match="taken by GPU instance"):
        first.mig.create(ours)


def test_a_busy_partition_is_tried_again_and_goes_with_its_last_process(card):
    first = card()
    step = first.step("1g.10gb", 0)
    first.mig.create(step)
    (instance,) = first.mig.instances(first.gpu.uuid)
    control.set_process(first.root, 0, 77, None, instance=(instance.id, 0))
    first.mig = MigCards(
        first.node.nvml, first.root, lambda _: control.clear_processes(first.root, 0)
    )
    first.mig.destroy(step)
    assert first.mig.instances(first.gpu.uuid) == ()


def test_a_partition_that_stays_busy_is_refused_with_its_process(card):
    first = card()
    step = first.step("1g.10gb", 0)
    first.mig.create(step)
    (instance,) = first.mig.instances(first.gpu.uuid)
    control.set_process(first.root, 0, 77, None, instance=(instance.id, 0))
    with pytest.raises(DeviceBusyError, match=r"1g.10gb at memory slice 0: in use by process 77"):
        first.mig.destroy(step)
    assert sum(first.pauses) < 10
    assert first.mig.present(step)


def test_the_last_half_may_go_later(card):
    """ "Compute instance gone, GPU instance in use" happens (DCGM#95)."""
    first = card()
    step = first.step("1g.10gb", 0)
    first.mig.create(step)
    control.inject(first.root, "nvmlGpuInstanceDestroy", 19, count=None)
    with pytest.raises(DeviceBusyError, match="no compute process is listed"):
        first.mig.destroy(step)
    assert first.mig.instances(first.gpu.uuid)[0].compute == ()
    control.clear_faults(first.root)
    first.mig.destroy(step)
    assert first.mig.instances(first.gpu.uuid) == ()


def test_a_smaller_compute_instance_of_somebody_is_named(card):
    first = card()
    step = first.step("2g.20gb", 0)
    control.inject(first.root, "nvmlGpuInstanceCreateComputeInstance", 999)
    with pytest.raises(HardwareError):
        first.mig.create(step)
    make_small_compute_instance(first)
    with pytest.raises(HardwareError, match="already has compute instance 0"):
        first.mig.create(step)


def make_small_compute_instance(card):
    from driver.hw.instances import gpu_instances  # noqa: PLC0415 - a stranger's way
    from driver.hw.nvml import ask  # noqa: PLC0415

    with card.node.nvml.on(card.gpu.uuid) as handle:
        (found,) = gpu_instances(handle)
        ask("nvmlGpuInstanceCreateComputeInstance", found.handle, 0)


# Mode ----------------------------------------------------------------------------------------


def test_the_mode_changes_where_it_may_and_says_so_where_not(card):
    first = card(mode=False)
    on = EnsureMigMode(first.gpu.uuid, on=True, toggle=True)
    assert not first.mig.in_mode(on)
    with pytest.raises(
        HardwareError, match=r"nvidia-smi -i GPU-\S+ -mig 1.*migModeToggle|migMode"
    ):
        first.mig.ensure_mode(EnsureMigMode(first.gpu.uuid, on=True, toggle=False))
    first.mig.ensure_mode(on)
    first.mig.ensure_mode(on)
    assert first.mig.in_mode(on)
    first.mig.ensure_mode(EnsureMigMode(first.gpu.uuid, on=False, toggle=True))
    assert not first.mig.in_mode(on)


def test_a_mode_that_stays_pending_is_not_taken_for_on(card):
    first = card("a100-40gb", mode=False)
    control.set_mig_reset(first.root, 0, "blocked")
    with pytest.raises(HardwareError, match="RESET_REQUIRED"):
        first.mig.ensure_mode(EnsureMigMode(first.gpu.uuid, on=True, toggle=True))
    assert first.mig.instances(first.gpu.uuid) == ()


def test_a_card_with_a_process_keeps_its_mode_and_names_it(card):
    first = card(mode=False)
    control.set_process(first.root, 0, 4711, None)
    with pytest.raises(DeviceBusyError, match="in use by process 4711"):
        first.mig.ensure_mode(EnsureMigMode(first.gpu.uuid, on=True, toggle=True))


def test_a_card_that_cannot_be_cut_has_no_instances(node):
    t4 = node("t4", 1)
    assert MigCards(t4.nvml, t4.root).instances(t4.uuids()[0]) == ()


def test_processes_are_told_by_partition(card):
    first = card()
    step, other = first.step("1g.10gb", 0), first.step("1g.10gb", 1)
    for each in (step, other):
        first.mig.create(each)
    ids = {each.placement: each.id for each in first.mig.instances(first.gpu.uuid)}
    control.set_process(first.root, 0, 1, None, instance=(ids[step.placement], 0))
    control.set_process(first.root, 0, 2, None, instance=(ids[other.placement], 0))
    cards = first.node.cards
    assert {each.pid for each in cards.processes(first.gpu.uuid)} == {1, 2}
    assert [each.pid for each in cards.processes(first.gpu.uuid, step.placement)] == [1]


def test_nvml_is_asked_anew_after_the_mode_changed(card):
    """The card may have been reset: its handle is looked up again."""
    first = card(mode=False)
    nvml: Nvml = first.node.nvml
    before = nvml.handle(first.gpu.uuid)
    first.mig.ensure_mode(EnsureMigMode(first.gpu.uuid, on=True, toggle=True))
    assert nvml.handle(first.gpu.uuid) is not before
