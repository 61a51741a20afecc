"""The map of the cards: one bar a card, drawn from ResourceSlices and ResourceClaims. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import click

from cli.text import plural, table

Object: TypeAlias = Mapping[str, Any]
DeviceId: TypeAlias = tuple[str, str, str]  # driver, pool, device

BAR = 24  # columns of a bar
_FULL, _FREE, _TAINTED = "█", "░", "▒"
_HOLDER_COLOURS = ("cyan", "magenta", "blue", "green", "bright_cyan", "bright_magenta")
_STANDARD = "resource.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Card:
    """One card as the cluster sees it. Texts are empty where nothing is published."""

    node: str
    device: str
    product: str
    memory: str  # a Kubernetes quantity, "80Gi"
    numa: str
    nvlink: str  # the NVLink group
    pci: str
    holders: tuple[str, ...] = ()  # "namespace/claim (pod, pod)"
    taints: tuple[str, ...] = ()  # "key=value:effect"


def cards(slices: Iterable[Object], claims: Iterable[Object], driver: str) -> list[Card]:
    """The whole cards of ``driver``, by node, NUMA node and PCI address.

    Only the newest generation of a pool counts (KEP-4381).
    """
    held = holders(claims)
    found = [
        _card(spec, device, held)
        for spec in _newest(slices, driver)
        for device in spec.get("devices") or ()
        if attribute(device, "type") in ("", "gpu")
    ]
    return sorted(found, key=lambda card: (card.node, len(card.pci), card.pci, card.device))


def holders(claims: Iterable[Object]) -> dict[DeviceId, tuple[str, ...]]:
    """Who holds which device: ``namespace/claim`` and the pods it is reserved for."""
    held: dict[DeviceId, tuple[str, ...]] = {}
    for claim in claims:
        status = claim.get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        who = _holder(claim["metadata"], status.get("reservedFor") or ())
        for result in devices.get("results") or ():
            key = (result["driver"], result["pool"], result["device"])
            mark = " [admin]" if result.get("adminAccess") else ""
            held[key] = (*held.get(key, ()), who + mark)
    return held


def attribute(device: Object, name: str) -> str:
    """The value of an attribute as text; empty where there is none."""
    value = (device.get("attributes") or {}).get(name) or {}
    return str(next(iter(value.values()), ""))


def draw(found: Sequence[Card]) -> list[str]:
    """The map, node by node, with a line that sums up each."""
    lines: list[str] = []
    for node in dict.fromkeys(card.node for card in found):
        here = [card for card in found if card.node == node]
        busy = sum(bool(card.holders) for card in here)
        products = ", ".join(dict.fromkeys(card.product for card in here))
        free = len(here) - busy
        head = f"{click.style(node, bold=True)}  {products}: {plural(len(here), 'card')}"
        lines.append(f"{head}, {busy} held, {free} free")
        colours = _colours(here)
        rows = [_row(card, colours) for card in here]
        lines += table(("CARD", "", "MEMORY", "NUMA", "NVLINK", "HELD BY"), rows, indent=2)
    return lines


def _holder(metadata: Object, consumers: Sequence[Object]) -> str:
    pods = ", ".join(str(consumer["name"]) for consumer in consumers)
    name = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
    return f"{name} ({pods})" if pods else name


def _newest(slices: Iterable[Object], driver: str) -> Iterator[Object]:
    specs = [found["spec"] for found in slices if found["spec"]["driver"] == driver]
    newest: dict[str, int] = {}
    for spec in specs:
        pool = spec["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), int(pool["generation"]))
    return (spec for spec in specs if spec["pool"]["generation"] == newest[spec["pool"]["name"]])


def _card(spec: Object, device: Object, held: Mapping[DeviceId, tuple[str, ...]]) -> Card:
    pool = spec["pool"]["name"]
    memory = ((device.get("capacity") or {}).get("memory") or {}).get("value", "")
    return Card(
        node=spec.get("nodeName") or pool,
        device=device["name"],
        product=attribute(device, "productName"),
        memory=str(memory),
        numa=attribute(device, f"{_STANDARD}numaNode"),
        nvlink=attribute(device, "nvlinkGroup"),
        pci=attribute(device, f"{_STANDARD}pciBusID"),
        holders=held.get((spec["driver"], pool, device["name"]), ()),
        taints=tuple(_taint(taint) for taint in device.get("taints") or ()),
    )


def _taint(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _colours(here: Sequence[Card]) -> Mapping[str, str]:
    names = list(dict.fromkeys(card.holders[0] for card in here if card.holders))
    return {name: _HOLDER_COLOURS[i % len(_HOLDER_COLOURS)] for i, name in enumerate(names)}


def _row(card: Card, colours: Mapping[str, str]) -> tuple[str, ...]:
    holder = "; ".join(card.holders) or "free"
    if card.taints:
        holder += click.style(f"  tainted: {', '.join(card.taints)}", fg="red")
    return (card.device, _bar(card, colours), card.memory, card.numa, card.nvlink, holder)


def _bar(card: Card, colours: Mapping[str, str]) -> str:
    bar = (_FULL if card.holders else _FREE) * BAR
    if card.taints and not card.holders:
        return click.style(_TAINTED * BAR, fg="red")
    return click.style(bar, fg=colours[card.holders[0]]) if card.holders else bar
