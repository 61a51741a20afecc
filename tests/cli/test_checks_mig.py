"""Whose the MIG mode of a card is."""

from dataclasses import replace

import pytest

from api.policy import parse_policy
from cli.checks import mig
from cli.checks.mig import Known
from driver.model.gpu import MigMode
from driver.model.ids import GpuUuid
from driver.settings import Settings
from driver.state.journal import Journal
from driver.state.known import Known as CardsFile
from tests.plan.builders import allocation, claim, cuttable, gpu, holding, partition
from tests.state.builders import uid

AMPERE, HOPPER = (8, 0), (9, 0)
ADVICE = "nvidia-smi -i 0000:00:00.0 -mig 0"


def in_mig_mode(capability=HOPPER):
    return replace(cuttable(0), mig_mode=MigMode(True, True), compute_capability=capability)


def policy(modes, more=""):
    return parse_policy(f"gpus: [{{select: {{all: true}}, modes: [{modes}]{more}}}]", "p.yaml")


@pytest.mark.parametrize("modes", ["gpu", "gpu, mig"])
@pytest.mark.parametrize("capability", [AMPERE, HOPPER])
def test_a_card_with_partitions_of_claims_is_the_drivers(modes, capability):
    known = Known(policy(modes), {cuttable(0).uuid: ["team/train", "team/chat"]})
    (found,) = mig.judge([in_mig_mode(capability)], known)
    assert (found.check, found.level, found.mend) == ("card 0000:00:00.0", "ok", "")
    assert found.found == "in MIG mode: the driver has partitions there for team/train, team/chat"


def test_adopted_partitions_are_told():
    (found,) = mig.judge([in_mig_mode()], Known(policy("gpu"), adopted={cuttable(0).uuid: 2}))
    assert (found.level, found.mend) == ("ok", "")
    assert "2 partitions made by hand" in found.found


@pytest.mark.parametrize(
    ("capability", "modes", "more", "level", "said"),
    [
        (HOPPER, "gpu, mig", "", "ok", "the plugin's to change"),
        (HOPPER, "gpu", ", migModeToggle: whenIdle", "ok", "the plugin's to change"),
        (HOPPER, "gpu, mig", ", migModeToggle: never", "ok", "offered in partitions"),
        (AMPERE, "gpu, mig", "", "ok", "offered in partitions"),
        (HOPPER, "gpu", "", "warn", "without a partition of any claim"),
        (AMPERE, "gpu", ", migModeToggle: whenIdle", "warn", "without a partition of any claim"),
    ],
)
def test_turning_it_off_is_advised_only_where_the_plugin_never_will(
    capability, modes, more, level, said
):
    (found,) = mig.judge([in_mig_mode(capability)], Known(policy(modes, more)))
    assert found.level == level
    assert said in found.found
    assert (ADVICE in found.mend) is (level == "warn")


def test_what_cannot_be_told_leads_to_no_advice():
    (found,) = mig.judge([in_mig_mode()], Known(problem="the disk is on fire"))
    assert found.level == "warn"
    assert "the disk is on fire" in found.found
    assert "nvidia-smi" not in found.mend


def test_a_card_without_the_mode_is_no_finding():
    off = replace(cuttable(1), mig_mode=MigMode(False, False))
    assert mig.judge([gpu(0), off], Known()) == []


# Reading ---------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path):
    return Settings("node-1", kubelet_root=tmp_path / "k", cdi_dir=tmp_path / "cdi")


def test_claims_and_adopted_partitions_are_read(settings):
    card, other = cuttable(0), cuttable(1)
    small, whole = partition(card, "1g.10gb"), partition(card, "1g.10gb", 1)
    cut = claim(uid(1), allocation(small, 0), allocation(whole, 1))
    Journal.open(settings.journal_dir).put(holding(cut, small, whole))
    CardsFile(settings.known_file).save({"adopted": {other.uuid: [[19, 0, 1]], "GPU-0": []}})
    found = mig.read(settings)
    assert found.problem == ""
    assert found.claims == {card.uuid: [f"{cut.namespace}/{cut.name}"]}
    assert found.adopted == {other.uuid: 1}


def test_a_node_without_records_has_none(settings):
    assert mig.read(settings) == Known()
    CardsFile(settings.known_file).save({"adopted": ["?"]})
    assert mig.read(settings) == Known()


def test_what_cannot_be_trusted_or_read_is_said(settings, tmp_path):
    settings.known_file.parent.mkdir(parents=True)
    settings.known_file.write_text("?")
    assert str(settings.known_file) in mig.read(settings).problem
    assert settings.known_file.exists()  # nothing is set aside
    settings.known_file.unlink()
    settings.journal_dir.mkdir(parents=True)
    (settings.journal_dir / f"{uid(1)}.json").write_text("?")
    assert uid(1) in mig.read(settings).problem
    bad = tmp_path / "policy.yaml"
    bad.write_text("wings: 2")
    assert "policy has mistakes" in mig.read(replace(settings, policy_file=bad)).problem
    assert GpuUuid("GPU-x") not in mig.read(settings).claims
