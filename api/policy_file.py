"""From YAML text to ``NodePolicy``. Used through ``api.policy.parse_policy``."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast, get_args

import yaml

from api.policy import (
    DEFAULT_IGNORED_XIDS,
    MODES,
    GpuPolicy,
    GpuRule,
    GpuSelector,
    MigModeToggle,
    NodeOverride,
    NodePolicy,
    TaintEffect,
)
from api.policy_order import read_order_rules
from api.policy_sharing import FIELDS as SHARING_FIELDS
from api.policy_sharing import read_sharing
from api.reading import Reader, join, names
from api.v1alpha1 import API_VERSION

_SETTINGS = ("gpus", "taintEffect", "ignoredXids", "orphanGraceSeconds", "order")
_TOP = ("apiVersion", "kind", *_SETTINGS, "nodes")
_NODE = ("nodeName", "nodeLabels", *_SETTINGS)
_RULE = ("select", "modes", "migModeToggle", "adoptExisting", *SHARING_FIELDS)
_SELECT = ("product", "uuid", "pciAddress", "all")
_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_DAY = 86_400
_XID_MAX = 9_999
_PLAIN_TAGS = {f"tag:yaml.org,2002:{tag}" for tag in ("map", "seq", "str", "int", "bool", "null")}


def read_policy(text: str) -> tuple[NodePolicy, list[str]]:
    """The policy and every problem found; with problems the policy means nothing."""
    reader = Reader()
    raw = _load(reader, text)
    if reader.problems or raw is None:
        return NodePolicy(), reader.problems
    top = reader.mapping("", raw, f"a mapping with {names(_TOP)}")
    reader.only("", top, _TOP)
    for key, want in (("apiVersion", API_VERSION), ("kind", "NodePolicy")):
        if key in top:
            reader.choice(key, top[key], (want,))
    settings = _settings(reader, "", top)
    nodes = reader.items("nodes", top.get("nodes", []))
    policy = NodePolicy(
        gpus=settings.gpus,
        taint_effect=settings.taint_effect or "NoSchedule",
        ignored_xids=DEFAULT_IGNORED_XIDS | settings.ignored_xids,
        orphan_grace_seconds=60
        if settings.orphan_grace_seconds is None
        else settings.orphan_grace_seconds,
        order=settings.order,
        nodes=tuple(_node(reader, f"nodes[{i}]", node) for i, node in enumerate(nodes)),
    )
    return policy, reader.problems


def _settings(reader: Reader, path: str, raw: Mapping[Any, Any]) -> NodeOverride:
    """The fields that stand both at the top and below ``nodes``."""
    effect = grace = None
    if "taintEffect" in raw:
        where = join(path, "taintEffect")
        effect = reader.choice(where, raw["taintEffect"], get_args(TaintEffect))
    if "orphanGraceSeconds" in raw:
        where = join(path, "orphanGraceSeconds")
        grace = reader.integer(where, raw["orphanGraceSeconds"], 0, _DAY)
    return NodeOverride(
        gpus=_rules(reader, join(path, "gpus"), raw.get("gpus", [])),
        taint_effect=cast(TaintEffect | None, effect),
        ignored_xids=_xids(reader, join(path, "ignoredXids"), raw.get("ignoredXids", [])),
        orphan_grace_seconds=grace,
        order=read_order_rules(reader, join(path, "order"), raw.get("order", [])),
    )


def _xids(reader: Reader, path: str, raw: object) -> frozenset[int]:
    xids = enumerate(reader.items(path, raw, "a list of XID numbers"))
    read = [reader.integer(f"{path}[{i}]", xid, 1, _XID_MAX) for i, xid in xids]
    return frozenset(xid for xid in read if xid is not None)


def _node(reader: Reader, path: str, value: object) -> NodeOverride:
    raw = reader.mapping(path, value, "a mapping with nodeName or nodeLabels and settings")
    reader.only(path, raw, _NODE)
    if isinstance(value, Mapping) and not raw.keys() & {"nodeName", "nodeLabels"}:
        reader.problems.append(f"{path}: says no nodes; give nodeName or nodeLabels")
    name = None
    if "nodeName" in raw:
        name = reader.text(join(path, "nodeName"), raw["nodeName"], "the name of a node")
    settings = _settings(reader, path, raw)
    return NodeOverride(
        node_name=name,
        node_labels=_labels(reader, join(path, "nodeLabels"), raw.get("nodeLabels", {})),
        gpus=settings.gpus,
        taint_effect=settings.taint_effect,
        ignored_xids=settings.ignored_xids,
        orphan_grace_seconds=settings.orphan_grace_seconds,
        order=settings.order,
    )


def _labels(reader: Reader, path: str, value: object) -> Mapping[str, str]:
    labels = reader.mapping(path, value, "a mapping of label keys to values")
    for key, wanted in labels.items():
        if not isinstance(key, str) or not isinstance(wanted, str):
            reader.wrong(join(path, key), wanted, "a text for both key and value; quote it")
    return labels


def _rules(reader: Reader, path: str, value: object) -> tuple[GpuRule, ...]:
    raw = reader.items(path, value, "a list of rules with select and modes")
    rules = tuple(_rule(reader, f"{path}[{i}]", rule) for i, rule in enumerate(raw))
    read = [rule for rule in rules if _selects(reader, rule.path)]
    for i, rule in enumerate(read):
        first = next((each for each in read[:i] if each.select.covers(rule.select)), None)
        if first is not None:
            reader.problems.append(
                f"{rule.path}: never counts: {first.path} selects every card that it selects, and "
                f"the first rule that selects a card decides; put it before {first.path}, or "
                "remove one of them"
            )
    return rules


def _selects(reader: Reader, path: str) -> bool:
    """Whether the rule's selector could be read; without that it stands for every card."""
    bad = (f"{path}:", f"{path}.select:", f"{path}.select.")
    return not any(problem.startswith(bad) for problem in reader.problems)


def _rule(reader: Reader, path: str, value: object) -> GpuRule:
    raw = reader.mapping(path, value, "a mapping with select and modes")
    if isinstance(value, Mapping):
        reader.only(path, raw, _RULE)
        reader.problems += [
            f"{join(path, key)}: missing" for key in ("select", "modes") if key not in raw
        ]
    return GpuRule(
        _selector(reader, join(path, "select"), raw.get("select", {"all": True})),
        GpuPolicy(
            _modes(reader, join(path, "modes"), raw.get("modes", [])),
            _toggle(reader, path, raw),
            _adopt(reader, path, raw),
            read_sharing(reader, path, raw),
        ),
        path,
    )


def _toggle(reader: Reader, path: str, raw: Mapping[Any, Any]) -> MigModeToggle | None:
    if "migModeToggle" not in raw:
        return None
    where = join(path, "migModeToggle")
    found = reader.choice(where, raw["migModeToggle"], get_args(MigModeToggle))
    return cast(MigModeToggle | None, found)


def _adopt(reader: Reader, path: str, raw: Mapping[Any, Any]) -> bool:
    value = raw.get("adoptExisting", False)
    if not isinstance(value, bool):
        reader.wrong(join(path, "adoptExisting"), value, "true or false")
    return value is True


def _modes(reader: Reader, path: str, value: object) -> tuple[str, ...]:
    found: list[str] = []
    for i, raw in enumerate(reader.items(path, value, f"a list of {names(MODES)}")):
        mode = reader.choice(f"{path}[{i}]", raw, MODES)
        if mode in found:
            reader.problems.append(f"{path}[{i}]: {mode} stands here twice")
        elif mode is not None:
            found.append(mode)
    return tuple(found)


def _selector(reader: Reader, path: str, value: object) -> GpuSelector:
    raw = reader.mapping(path, value, f"a mapping with one or more of {names(_SELECT)}")
    reader.only(path, raw, _SELECT)
    if isinstance(value, Mapping) and not raw:
        reader.problems.append(f"{path}: selects nothing; write all: true for every card")
    if "all" in raw:
        _check_all(reader, path, raw)
    product = uuid = None
    if "product" in raw:
        product = reader.text(join(path, "product"), raw["product"], "a pattern of product names")
    if "uuid" in raw:
        uuid = _uuid(reader, join(path, "uuid"), raw["uuid"])
    return GpuSelector(product, uuid, _pci(reader, path, raw))


def _check_all(reader: Reader, path: str, raw: Mapping[Any, Any]) -> None:
    if raw["all"] is not True:
        reader.wrong(join(path, "all"), raw["all"], "true; leave it out otherwise")
    if len(raw) > 1:
        reader.problems.append(f"{join(path, 'all')}: stands beside other selectors; remove one")


def _uuid(reader: Reader, path: str, value: object) -> str | None:
    if isinstance(value, str) and value.startswith("GPU-"):
        return value
    reader.wrong(path, value, 'the UUID of a card, "GPU-…"')
    return None


def _pci(reader: Reader, path: str, raw: Mapping[Any, Any]) -> str | None:
    """In the form of ``driver.model.ids.PciAddress``; NVML's eight-digit domain is taken too."""
    if "pciAddress" not in raw:
        return None
    value = raw["pciAddress"]
    match = _PCI.fullmatch(value.lower()) if isinstance(value, str) else None
    if match is None:
        reader.wrong(join(path, "pciAddress"), value, 'a PCI address such as "0000:3b:00.0"')
        return None
    domain, *rest = match.groups()
    return f"{int(domain, 16):04x}:{rest[0]}:{rest[1]}.{rest[2]}"


def _load(reader: Reader, text: str) -> Any:
    """The plain data of one YAML document; duplicate keys and odd tags are problems."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        reader.problems += _node_problems("", root, set())
        return None if reader.problems else loader.construct_document(root)
    except yaml.YAMLError as error:
        text = " ".join(str(error).replace(' in "<unicode string>",', " at").split())
        reader.problems.append(f"document: no valid YAML: {text.removesuffix(' ^')}")
    except (ValueError, LookupError) as error:  # "!!int x", "!!bool x"
        reader.problems.append(f"document: a value does not fit its tag: {error}")
    except RecursionError:
        reader.problems.append("document: nested too deeply")
    return None


def _node_problems(path: str, node: Any, seen: set[int]) -> Iterator[str]:
    if id(node) in seen:  # an alias, perhaps of something around it
        return
    seen.add(id(node))
    if node.tag not in _PLAIN_TAGS:
        wanted = "text, a whole number, true, false, a list or a mapping; quote it"
        yield f"{path or 'document'}: got a value of type {node.tag}, want {wanted}"
    elif isinstance(node, yaml.MappingNode):
        yield from _mapping_problems(path, node, seen)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from _node_problems(f"{path}[{i}]", item, seen)


def _mapping_problems(path: str, node: Any, seen: set[int]) -> Iterator[str]:
    keys: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            yield f"{path or 'document'}: keys must be plain names (line {line})"
            continue
        where = join(path, key.value)
        if key.value in keys:
            yield f"{where}: stands here twice (line {line})"
        keys.add(key.value)
        yield from _node_problems(where, value, seen)
