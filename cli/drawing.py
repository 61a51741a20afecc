"""The map of the cards: one bar a card, drawn from ResourceSlices and ResourceClaims. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import click

from cli.drawing_shares import SharePart, card_name, part_of, texts, widths
from cli.text import plural, table

Object: TypeAlias = Mapping[str, Any]
DeviceId: TypeAlias = tuple[str, str, str]  # driver, pool, device
Holding: TypeAlias = tuple[str, Object]  # who, and the allocation result

BAR = 24  # columns of a bar
_FULL, _FREE, _TAINTED, _EDGE = "█", "░", "▒", "▌"
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
    parts: tuple["Part", ...] = ()  # partitions that are held or tainted, by start
    slices: int = 0  # memory slices, where the card is offered in partitions
    shares: tuple[SharePart, ...] = ()
    shareable: str = ""  # memory that shares divide, a Kubernetes quantity

    @property
    def held(self) -> bool:
        return bool(self.holders or self.shares) or any(part.holders for part in self.parts)


@dataclass(frozen=True, slots=True)
class Part:
    """A partition of a card, in memory slices."""

    profile: str
    start: int
    size: int
    holders: tuple[str, ...]
    taints: tuple[str, ...]


def cards(slices: Iterable[Object], claims: Iterable[Object], driver: str) -> list[Card]:
    """The cards of ``driver``, by node and PCI address, with the partitions and shares that are
    held.

    A card that is offered in partitions or shares only is drawn all the same. Only the newest
    generation of a pool counts (KEP-4381).
    """
    held = holdings(claims)
    wholes: dict[tuple[str, str], Card] = {}
    cut: dict[tuple[str, str], list[Card]] = {}
    shared: dict[tuple[str, str], list[Card]] = {}
    for spec in _newest(slices, driver):
        for device in spec.get("devices") or ():
            card = _card(spec, device, held)
            if attribute(device, "type") == "mig":
                name = card.device.partition("-mig-")[0]
                cut.setdefault((card.node, name), []).append(_as_part(card, device))
            elif (kind := attribute(device, "type")) in ("mps", "timeslice"):
                name = card_name(card.device, kind)
                of_device = held.get((spec["driver"], spec["pool"]["name"], device["name"]), ())
                of_card = _as_shared(card, kind, of_device)
                shared.setdefault((card.node, name), []).append(of_card)
            elif attribute(device, "type") in ("", "gpu"):
                wholes[card.node, card.device] = card
    for key, partitions in cut.items():
        bare = replace(partitions[0], device=key[1], parts=(), holders=(), taints=(), memory="")
        wholes[key] = _with_parts(wholes.get(key, bare), partitions)
    for key, found in shared.items():
        bare = replace(found[0], device=key[1], shares=(), taints=())
        wholes[key] = _with_shares(wholes.get(key, bare), found)
    return sorted(
        wholes.values(), key=lambda card: (card.node, len(card.pci), card.pci, card.device)
    )


def holders(claims: Iterable[Object]) -> dict[DeviceId, tuple[str, ...]]:
    """Who holds which device: ``namespace/claim`` and the pods it is reserved for."""
    return {key: tuple(who for who, _ in found) for key, found in holdings(claims).items()}


def holdings(claims: Iterable[Object]) -> dict[DeviceId, tuple[Holding, ...]]:
    """The same, each with its allocation result."""
    held: dict[DeviceId, tuple[Holding, ...]] = {}
    for claim in claims:
        status = claim.get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        who = _holder(claim["metadata"], status.get("reservedFor") or ())
        for result in devices.get("results") or ():
            key = (result["driver"], result["pool"], result["device"])
            mark = " [admin]" if result.get("adminAccess") else ""
            held[key] = (*held.get(key, ()), (who + mark, result))
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
        busy = sum(card.held for card in here)
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


def _card(spec: Object, device: Object, held: Mapping[DeviceId, tuple[Holding, ...]]) -> Card:
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
        holders=tuple(who for who, _ in held.get((spec["driver"], pool, device["name"]), ())),
        taints=tuple(_taint(taint) for taint in device.get("taints") or ()),
    )


def _as_part(card: Card, device: Object) -> Card:
    """The card of a partition, with it as its only part."""
    start, size = (int(attribute(device, f"placement{key}") or 0) for key in ("Start", "Size"))
    part = Part(attribute(device, "profile"), start, size, card.holders, card.taints)
    return replace(card, parts=(part,))


def _with_parts(card: Card, partitions: Sequence[Card]) -> Card:
    parts = [part for each in partitions for part in each.parts]
    shown = [part for part in parts if part.holders]
    return replace(
        card,
        parts=tuple(sorted(shown, key=lambda part: part.start)),
        slices=max(part.start + part.size for part in parts),
    )


def _as_shared(card: Card, kind: str, held: Iterable[Holding]) -> Card:
    """The card of a shared device, with the shares of it."""
    parts = tuple(part_of(who, kind, result) for who, result in held)
    return replace(card, holders=(), shares=parts, shareable=card.memory)


def _with_shares(card: Card, shared: Sequence[Card]) -> Card:
    """At most one of a card's shared devices is held. Taints are told once: where the card is
    not offered as a whole, by its shared device."""
    held = next((each for each in shared if each.shares), shared[0])
    taints = card.taints or held.taints
    return replace(card, shares=held.shares, shareable=held.shareable, taints=taints)


def _taint(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _colours(here: Sequence[Card]) -> Mapping[str, str]:
    all_holders = [card.holders for card in here]
    all_holders += [part.holders for card in here for part in card.parts]
    all_holders += [(share.holder,) for card in here for share in card.shares]
    names = list(dict.fromkeys(holders[0] for holders in all_holders if holders))
    return {name: _HOLDER_COLOURS[i % len(_HOLDER_COLOURS)] for i, name in enumerate(names)}


def _row(card: Card, colours: Mapping[str, str]) -> tuple[str, ...]:
    held = [*card.holders, *(_part_text(part) for part in card.parts), *texts(card.shares)]
    holder = "; ".join(held) or "free"
    if card.taints:
        holder += click.style(f"  tainted: {', '.join(card.taints)}", fg="red")
    return (card.device, _bar(card, colours), card.memory, card.numa, card.nvlink, holder)


def _part_text(part: Part) -> str:
    last = part.start + part.size - 1
    where = f"{part.start}-{last}" if part.size > 1 else str(part.start)
    return f"{part.profile} [{where}] {'; '.join(part.holders)}"


def _cut_bar(card: Card, colours: Mapping[str, str]) -> str:
    """Memory slice by memory slice. Slices that do not divide the bar's width get it rounded."""
    cells: list[str] = []
    for n in range(card.slices):
        width = BAR * (n + 1) // card.slices - BAR * n // card.slices
        owner = next((p for p in card.parts if p.start <= n < p.start + p.size), None)
        if owner is None:
            cells.append(_FREE * width)
        else:
            edge = _EDGE if n == owner.start + owner.size - 1 else _FULL
            text = _FULL * (width - 1) + edge
            cells.append(click.style(text, fg=colours[owner.holders[0]]))
    return "".join(cells)


def _shared_bar(card: Card, colours: Mapping[str, str]) -> str:
    cells: list[str] = []
    columns = widths(card.shares, card.shareable, BAR)
    for share, width in zip(card.shares, columns, strict=True):
        text = (_FULL * (width - 1) + _EDGE) if width else ""
        cells.append(click.style(text, fg=colours[share.holder]))
    return "".join(cells) + _FREE * (BAR - sum(columns))


def _bar(card: Card, colours: Mapping[str, str]) -> str:
    if card.shares and not card.holders:
        return _shared_bar(card, colours)
    if card.parts and not card.holders:
        return _cut_bar(card, colours)
    bar = (_FULL if card.holders else _FREE) * BAR
    if card.taints and not card.holders:
        return click.style(_TAINTED * BAR, fg="red")
    return click.style(bar, fg=colours[card.holders[0]]) if card.holders else bar
