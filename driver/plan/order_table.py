"""Orders for cards whose node policy names none.

Found by ``python -m bench.packing table`` for four mixes at once (many small ones; all sizes; for
language models; many large ones), each at 60 % load on eight cards. They depend on the geometry
alone: every card with seven GPU slices over eight memory slices has the same one, whatever its
driver calls the profiles. Others than these two geometries stay card by card.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from api.policy_order import OrderRule
from driver.plan.order import Order, Pass, Shape, merged, naive

Geometry: TypeAlias = Mapping[tuple[int, int], tuple[Pass, ...]]  # (GPU slices, memory slices)

_SEVEN: Geometry = {
    (1, 1): (Pass((6, 5, 4, 3, 2, 1, 0)),),
    (1, 2): (Pass((6, 4)), Pass((2, 0))),
    (2, 2): (Pass((0, 2, 4)),),
    (3, 4): (Pass((4, 0)),),
    (4, 4): (Pass((0,)),),
    (7, 8): (Pass((0,), down=True),),
}
_FOUR: Geometry = {
    (1, 1): (Pass((3, 2, 1, 0)),),
    (2, 2): (Pass((0, 2)),),
    (4, 4): (Pass((0,), down=True),),
}
_TABLE: Mapping[int, Geometry] = {8: _SEVEN, 4: _FOUR}  # by the card's memory slices


def order_of(product: str, shapes: Sequence[Shape], rules: Sequence[OrderRule] = ()) -> Order:
    """The order for a product: the policy's, then the table's, then card by card.

    Of the policy's ``rules`` the first one whose pattern matches the product counts.
    """
    fallback = merged(table_order(shapes), naive(shapes))
    for rule in rules:
        if fnmatchcase(product, rule.product):
            return merged(rule.order, fallback)
    return fallback


def table_order(shapes: Sequence[Shape]) -> Order:
    """What the table says of these profiles; variants such as ``+me`` follow their plain one."""
    memory = max((start + shape.size for shape in shapes for start in shape.starts), default=0)
    geometry = _TABLE.get(memory, {})
    found = {}
    for shape in shapes:
        passes = geometry.get((shape.slices, shape.size), ())
        if sorted(start for each in passes for start in each.starts) == sorted(shape.starts):
            found[shape.name] = passes
    return Order(found)
