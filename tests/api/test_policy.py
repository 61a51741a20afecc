import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.policy import (
    DEFAULT_IGNORED_XIDS,
    GpuPolicy,
    GpuRule,
    GpuSelector,
    NodePolicy,
    PolicyProblems,
    parse_policy,
)

H100 = ("GPU-3f0c2d5a", "NVIDIA H100 80GB HBM3", "0000:3b:00.0")
L4 = ("GPU-aaaaaaaa", "NVIDIA L4", "0001:00:00.0")
OFFERED, NOT_OFFERED = GpuPolicy(("gpu",)), GpuPolicy(())


def problems(text):
    with pytest.raises(PolicyProblems) as caught:
        parse_policy(text, "policy.yaml")
    assert str(caught.value) == "policy.yaml: " + "; ".join(caught.value.problems)
    assert caught.value.source == "policy.yaml"
    return caught.value.problems


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "{}", "null", "---\n"])
def test_an_empty_file_is_the_default_policy(text):
    policy = parse_policy(text, "policy.yaml")
    assert policy == NodePolicy()
    assert policy.ignored_xids == {13, 31, 43, 45, 68, 109}
    assert policy.for_gpu(*H100) == GpuPolicy(("gpu", "mps", "timeslice"))


def test_every_setting_is_read():
    policy = parse_policy(
        """
        apiVersion: gpu.aliquot.dev/v1alpha1
        kind: NodePolicy
        taintEffect: None
        ignoredXids: [94, 13]
        orphanGraceSeconds: 0
        gpus:
        - select: {product: "NVIDIA H*", pciAddress: "00000000:3B:00.0"}
          modes: [gpu]
        - select: {all: true}
          modes: []
        """,
        "policy.yaml",
    )
    assert policy == NodePolicy(
        gpus=(
            GpuRule(GpuSelector(product="NVIDIA H*", pci_address="0000:3b:00.0"), OFFERED),
            GpuRule(GpuSelector(), NOT_OFFERED),
        ),
        taint_effect="None",
        ignored_xids=DEFAULT_IGNORED_XIDS | {94},
        orphan_grace_seconds=0,
    )
    assert policy.for_gpu(*H100) == OFFERED
    assert policy.for_gpu(*L4) == NOT_OFFERED


@pytest.mark.parametrize(
    ("select", "matches"),
    [
        ("{all: true}", [True, True]),
        ('{product: "*L4"}', [False, True]),
        ('{product: "*l4"}', [False, False]),
        ("{uuid: GPU-3F0C2D5A}", [True, False]),
        ('{pciAddress: "0001:00:00.0"}', [False, True]),
        ('{product: "NVIDIA*", uuid: GPU-aaaaaaaa}', [False, True]),
        ('{product: "NVIDIA H*", uuid: GPU-aaaaaaaa}', [False, False]),
    ],
)
def test_a_selector_wants_all_that_it_names(select, matches):
    policy = parse_policy(f"gpus: [{{select: {select}, modes: []}}]", "policy.yaml")
    assert [policy.for_gpu(*card) == NOT_OFFERED for card in (H100, L4)] == matches


def test_the_first_rule_that_selects_a_card_decides():
    text = "gpus: [{select: {uuid: GPU-aaaaaaaa}, modes: [gpu]}, {select: {all: true}, modes: []}]"
    policy = parse_policy(text, "policy.yaml")
    assert (policy.for_gpu(*L4), policy.for_gpu(*H100)) == (OFFERED, NOT_OFFERED)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("all: true", 'product: "NVIDIA L4"'),
        ("all: true", "uuid: GPU-aaaaaaaa"),
        ("all: true", "all: true"),
        ('product: "*"', 'pciAddress: "0001:00:00.0"'),
        ('product: "NVIDIA*"', 'product: "NVIDIA L4", uuid: GPU-aaaaaaaa'),
        ("uuid: GPU-AAAAAAAA", "uuid: GPU-aaaaaaaa"),
        ('pciAddress: "0001:00:00.0"', 'pciAddress: "0001:00:00.0", product: "*L4"'),
    ],
)
@pytest.mark.parametrize("where", ["", "nodes[0]."])
def test_a_rule_that_never_counts_is_a_mistake(first, second, where):
    rules = f"gpus: [{{select: {{{first}}}, modes: []}}, {{select: {{{second}}}, modes: [gpu]}}]"
    text = f"nodes: [{{nodeName: a, {rules}}}]" if where else rules
    assert problems(text) == (
        f"{where}gpus[1]: never counts: {where}gpus[0] selects every card that it selects, and "
        f"the first rule that selects a card decides; put it before {where}gpus[0], or remove "
        "one of them",
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('product: "NVIDIA L4"', "all: true"),
        ('product: "NVIDIA L4"', 'product: "NVIDIA L40S"'),
        ('product: "NVIDIA ?"', 'product: "NVIDIA *"'),
        ('product: "*L4"', "uuid: GPU-aaaaaaaa"),
        ("uuid: GPU-aaaaaaaa", 'product: "NVIDIA L4"'),
        ('uuid: GPU-aaaaaaaa, product: "*L4"', "uuid: GPU-aaaaaaaa"),
        ('pciAddress: "0001:00:00.0"', 'pciAddress: "0002:00:00.0"'),
    ],
)
def test_a_rule_that_may_count_is_none(first, second):
    parse_policy(
        f"gpus: [{{select: {{{first}}}, modes: []}}, {{select: {{{second}}}, modes: [gpu]}}]",
        "policy.yaml",
    )


def test_a_rule_with_another_mistake_is_not_said_to_hide_one():
    text = "gpus: [{select: {}, modes: []}, {modes: []}, 1, {select: {all: true}, modes: [warp]}]"
    assert [each for each in problems(text) if "never counts" in each] == []
    text = "gpus: [{select: {all: true}, modes: [warp]}, {select: {all: true}, modes: [gpu]}]"
    assert len(problems(text)) == 2


NODES = """
taintEffect: NoSchedule
orphanGraceSeconds: 100
gpus: [{select: {all: true}, modes: []}]
nodes:
- nodeName: a
  taintEffect: NoExecute
  gpus: [{select: {product: "*L4"}, modes: [gpu]}]
- nodeLabels: {pool: training, zone: "1"}
  taintEffect: None
  ignoredXids: [94]
  orphanGraceSeconds: 0
- nodeName: a
  nodeLabels: {pool: inference}
  orphanGraceSeconds: 7
"""
TRAINING = {"pool": "training", "zone": "1", "other": "x"}


@pytest.mark.parametrize(
    ("name", "labels", "effect", "grace", "skips_94", "l4"),
    [
        pytest.param("b", {}, "NoSchedule", 100, False, NOT_OFFERED, id="none"),
        pytest.param("b", {"pool": "training"}, "NoSchedule", 100, False, NOT_OFFERED, id="half"),
        pytest.param("a", {}, "NoExecute", 100, False, OFFERED, id="name"),
        pytest.param("b", TRAINING, "None", 0, True, NOT_OFFERED, id="labels"),
        pytest.param("a", TRAINING, "NoExecute", 0, True, OFFERED, id="both-the-earlier-wins"),
        pytest.param("a", {"pool": "inference"}, "NoExecute", 7, False, OFFERED, id="and"),
    ],
)
def test_entries_for_a_node_come_before_the_rest(name, labels, effect, grace, skips_94, l4):
    policy = parse_policy(NODES, "policy.yaml").for_node(name, labels)
    assert (policy.taint_effect, policy.orphan_grace_seconds) == (effect, grace)
    assert policy.ignored_xids >= DEFAULT_IGNORED_XIDS
    assert (94 in policy.ignored_xids) is skips_94
    assert (policy.for_gpu(*L4), policy.for_gpu(*H100)) == (l4, NOT_OFFERED)
    assert policy.nodes == ()


def test_every_mistake_is_told_with_its_path():
    assert problems(
        """
        kind: Policy
        taintEffect: NoEntry
        ignoredXids: [true, 0, "94"]
        orphanGraceSeconds: -1
        colour: red
        gpus:
        - select: {}
          modes: [gpu, gpu, mps, warp]
        - select: {all: false, product: 7, uuid: MIG-1, pciAddress: "3b:00", minor: 0}
          modes: gpu
          colour: red
        - modes: []
        - x
        nodes:
        - taintEffect: None
        - nodeName: ""
          nodeLabels: {pool: 1}
          nodes: []
        - nodeLabels: [a]
        """
    ) == (
        "colour: unknown field; known: apiVersion, kind, gpus, taintEffect, ignoredXids, "
        "orphanGraceSeconds, order, nodes",
        "kind: got 'Policy', want one of NodePolicy",
        "taintEffect: got 'NoEntry', want one of NoSchedule, NoExecute, None",
        "orphanGraceSeconds: got -1, want a whole number from 0 to 86400",
        "gpus[0].select: selects nothing; write all: true for every card",
        "gpus[0].modes[1]: gpu stands here twice",
        "gpus[0].modes[3]: got 'warp', want one of gpu, mps, timeslice, mig",
        "gpus[1].colour: unknown field; known: select, modes, migModeToggle, adoptExisting, "
        "defaultShares, shareSize, reserve, timeSlice, eviction",
        "gpus[1].select.minor: unknown field; known: product, uuid, pciAddress, all",
        "gpus[1].select.all: got false, want true; leave it out otherwise",
        "gpus[1].select.all: stands beside other selectors; remove one",
        "gpus[1].select.product: got 7, want a pattern of product names",
        "gpus[1].select.uuid: got 'MIG-1', want the UUID of a card, \"GPU-…\"",
        "gpus[1].select.pciAddress: got '3b:00', want a PCI address such as \"0000:3b:00.0\"",
        "gpus[1].modes: got 'gpu', want a list of gpu, mps, timeslice, mig",
        "gpus[2].select: missing",
        "gpus[3]: got 'x', want a mapping with select and modes",
        "ignoredXids[0]: got true, want a whole number from 1 to 9999",
        "ignoredXids[1]: got 0, want a whole number from 1 to 9999",
        "ignoredXids[2]: got '94', want a whole number from 1 to 9999",
        "nodes[0]: says no nodes; give nodeName or nodeLabels",
        "nodes[1].nodes: unknown field; known: nodeName, nodeLabels, gpus, taintEffect, "
        "ignoredXids, orphanGraceSeconds, order",
        "nodes[1].nodeName: got '', want the name of a node",
        "nodes[1].nodeLabels.pool: got 1, want a text for both key and value; quote it",
        "nodes[2].nodeLabels: got ['a'], want a mapping of label keys to values",
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gpus:", "gpus: got null, want a list of rules with select and modes"),
        ("taintEffect:", "taintEffect: got null, want one of NoSchedule, NoExecute, None"),
        ("- a", "document: got ['a'], want a mapping with apiVersion"),
        ("a", "document: got 'a', want a mapping"),
        ("nodes: {}", "nodes: got {}, want a list"),
        ("nodes: [1]", "nodes[0]: got 1, want a mapping with nodeName or nodeLabels"),
        ("gpus: [{select: 1, modes: []}]", "gpus[0].select: got 1, want a mapping"),
        ("gpus: []\ngpus: []", "gpus: stands here twice (line 2)"),
        ("nodes: [{nodeName: a, nodeName: b}]", "nodes[0].nodeName: stands here twice (line 1)"),
        ("{[a]: b}", "document: keys must be plain names (line 1)"),
        ("a: &a {x: 1}\nb: {<<: *a}", "b: keys must be plain names (line 2)"),
        ("1: 2", "[1]: unknown field"),
        ("ignoredXids: [2024-01-01]", "ignoredXids[0]: got a value of type tag:yaml.org,2002:tim"),
        ("ignoredXids: [1.5]", "ignoredXids[0]: got a value of type tag:yaml.org,2002:float"),
        ("!!python/object:os.system x", "document: got a value of type tag:yaml.org"),
        ("ignoredXids: [!!int x]", "document: a value does not fit its tag: "),
        ("ignoredXids: [!!bool x]", "document: a value does not fit its tag: "),
        ("a: b: c", "document: no valid YAML: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2", "document: no valid YAML: expected a single document"),
        ("\x00", "document: no valid YAML: unacceptable character"),
        (
            "gpus: [\n",
            "document: no valid YAML: while parsing a flow node expected the node content, "
            "but found '<stream end>' at line 2, column 1",
        ),
        ("&a [*a]", "document: got [[[[[[[...]]]]]]], want a mapping"),
        ("[" * 600, "document: nested too deeply"),
    ],
)
def test_what_is_no_policy_says_why(text, wanted):
    assert problems(text)[0].startswith(wanted)


YAML = st.text(alphabet="gpusmodeselct:-[]{}!&*<>|'\"#\n 0123,", max_size=40)


@given(YAML | st.text(max_size=20))
def test_no_text_crashes_the_reader(text):
    found: object
    try:
        found = parse_policy(text, "policy.yaml")
    except PolicyProblems as error:
        found = error.problems
    assert isinstance(found, NodePolicy) or found


def test_partitions_are_allowed_with_what_may_be_done_for_them():
    text = """
    gpus:
    - select: {all: true}
      modes: [gpu, mig]
      migModeToggle: never
      adoptExisting: true
    """
    policy = parse_policy(text, "policy.yaml")
    wanted = GpuPolicy(("gpu", "mig"), mig_mode_toggle="never", adopt_existing=True)
    assert policy.for_gpu(*L4) == wanted
    assert "counters" in policy.wanted_features
    assert not parse_policy("", "policy.yaml").wanted_features


def test_mistakes_about_partitions_are_told():
    text = "gpus: [{select: {all: true}, modes: [mig], migModeToggle: always, adoptExisting: 1}]"
    assert problems(text) == (
        "gpus[0].migModeToggle: got 'always', want one of whenIdle, never",
        "gpus[0].adoptExisting: got 1, want true or false",
    )
