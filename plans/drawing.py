"""A plan as a tree of text, for people: each state with its size, each multi-way join with its orders."""

from __future__ import annotations

from collections.abc import Mapping

from plans.costs import Orders, PlanCost, StateCost
from plans.optimiser import bytes_text
from plans.tree import Leaf, Node


def draw(cost: PlanCost) -> list[str]:
    """Lines, the root first."""
    states = {frozenset(each.streams): each for each in cost.states}
    return _lines(cost.plan, states, cost.orders, is_root=True)


def rows_text(rows: float) -> str:
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rows >= factor:
            return f"{rows / factor:,.3g} {unit} rows" if rows < 1e15 else f"{rows:.2g} rows"
    return f"{rows:,.3g} rows"


def _lines(node: Node, states: Mapping[frozenset[str], StateCost], orders: Orders, *, is_root: bool) -> list[str]:
    state = states.get(frozenset(node.streams))
    kept = f"{rows_text(state.rows)}, {bytes_text(state.bytes)}" if state is not None else ""
    if isinstance(node, Leaf):
        return [f"{node.stream}  {kept}"]
    ways = "join" if len(node.inputs) == 2 else f"{len(node.inputs)}-way join"
    lines = [f"{ways} of {' '.join(node.streams)}: {'results' if is_root else 'kept, ' + kept}"]
    if len(node.inputs) > 2:
        lines += [f"│   {_order(each, orders)}" for each in node.inputs]
    for number, each in enumerate(node.inputs):
        last = number == len(node.inputs) - 1
        first, *rest = _lines(each, states, orders, is_root=False)
        lines.append(f"{'└── ' if last else '├── '}{first}")
        lines += [f"{'    ' if last else '│   '}{line}" for line in rest]
    return lines


def _order(node: Node, orders: Orders) -> str:
    states = " then ".join(
        "".join(other) if len(other) == 1 else f"({' '.join(other)})" for other in orders[node.streams]
    )
    name = node.stream if isinstance(node, Leaf) else f"({' '.join(node.streams)})"
    return f"new {name} probes {states}"
