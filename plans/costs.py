"""CPU and memory of any plan: JTree equations 1-5, for every tree and with an order for every input of a node.

A new row of a stream goes from its leaf to the root. In a node with the inputs O, Y1, Y2 ... it comes out of O as so
many tuples, which probe the states of the other inputs one after the other. The equations' terms, all per second:

    JTree eqs 1, 2, 4                        here
    λ_X (C_i + C_d)                          append + expire, in each state that a tuple enters: leaves, inner states
    λ_A |S_B| σ_AB C_j                       flow of O = A joined with S_B: pairs, for each stream inside O
    ... then |S_C| σ_BC C_j                  the same for the prefix A B joined with S_C, and so on
    |S_A| + |S_B| + ... (eqs 3, 5)           bytes of all states: an mjoin has its leaves only

A flow is the same for each stream of O (plans/statistics.py), so the streams below an input share the best order and
one order per input is enough. Orders of different inputs are independent (JTree section 2.1), and so are those of
different nodes. That is what makes the exact search possible: a node's cost depends on the sets that it joins and
not on how they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from plans.statistics import Floats, Ints, Statistics, popcount
from plans.tree import Join, Leaf, Node, Step
from plans.work import (
    ACTIVITIES,
    APPEND,
    CANDIDATE,
    CONDITION,
    DEFAULT_CONSTANTS,
    EXPIRE,
    PAIR,
    PROBE,
    STEP,
    Constants,
)

INPUTS_ORDERED_EXACTLY: Final = 8
"""Inputs of one node up to which the best order is found by looking at all of them; beyond, greedily."""

Orders = Mapping[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""For each input of a node (by its streams): the states that its tuples probe, in this order."""


@dataclass(frozen=True, kw_only=True)
class TupleBytes:
    """What a tuple takes up in a state's columns; a leaf has its row's payload besides."""

    leaf: float = 26.0
    """Key, time, group, reference, link (worker/buffers.py)."""
    combined: float = 30.0
    """Key, both ends of its span, group, link."""
    reference: float = 4.0
    """Per stream of a combined tuple."""


@dataclass(frozen=True)
class StateCost:
    streams: tuple[str, ...]
    rows: float
    bytes: float


class Steps(NamedTuple):
    """Steps of a plan: a prefix probes a state, for so many streams inside the input where the prefix began."""

    prefix: Ints
    other: Ints
    times: Ints


@dataclass(frozen=True)
class Walk:
    """A plan taken apart into what it does."""

    steps: Steps
    kept: Ints
    """Its states."""
    states: tuple[tuple[str, ...], ...]
    """The same, as streams."""
    orders: Orders


@dataclass(frozen=True, kw_only=True)
class PlanCost:
    """A plan, the best orders inside its nodes, and what it needs in the long run."""

    plan: Join
    orders: Orders
    cpu: float
    """CPU seconds per second."""
    memory_bytes: float
    states: tuple[StateCost, ...]
    work: Mapping[str, float]
    """Units per second of each activity."""

    @property
    def kind(self) -> str:
        return kind_of(self.plan)

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": str(self.plan),
            "kind": self.kind,
            "cpu": self.cpu,
            "memory_bytes": self.memory_bytes,
            "states": [{"streams": list(each.streams), "rows": each.rows, "bytes": each.bytes} for each in self.states],
            "orders": {" ".join(each): [list(other) for other in others] for each, others in self.orders.items()},
            "work": dict(self.work),
        }


class CostModel:
    """Statistics and prices together: what states, steps, nodes and plans cost."""

    def __init__(
        self,
        statistics: Statistics,
        constants: Constants = DEFAULT_CONSTANTS,
        tuple_bytes: TupleBytes | None = None,
        batches_per_s: float = 1.0,
    ) -> None:
        self.statistics = statistics
        self.constants = constants
        self.tuple_bytes = tuple_bytes or TupleBytes()
        self.batches_per_s = batches_per_s
        self._orders: dict[tuple[int, ...], list[list[int]]] = {}
        """Of nodes that were costed before: plans of one search share most of theirs."""
        self._conditions = [(statistics.mask(each.streams), each.selectivity) for each in statistics.conditions]

    def step_work(self, prefix: Ints, other: Ints) -> Floats:
        """What the tuples of `prefix` whose newest row is of one given stream do with the state of `other`."""
        statistics, window_s = self.statistics, self.statistics.window_s
        members, others = popcount(prefix), popcount(other)
        both = statistics.density(prefix | other) * statistics.selectivity(prefix) * statistics.selectivity(other)
        work = np.zeros((*prefix.shape, len(ACTIVITIES)))
        work[..., PROBE] = statistics.flow(prefix)
        work[..., CANDIDATE] = both * window_s ** (members - 1.0) * statistics.live_s(others)
        work[..., PAIR] = both * window_s ** (members + others - 1.0)
        work[..., CONDITION] = work[..., PAIR] * self.evaluations(prefix, other)
        work[..., STEP] = self.batches_per_s
        return work

    def evaluations(self, prefix: Ints, other: Ints) -> Floats:
        """Conditions evaluated per pair: each one on what the ones before it have let through."""
        left = np.ones(prefix.shape)
        evaluated = np.zeros(prefix.shape)
        for wanted, selectivity in self._conditions:
            due = ((prefix | other) & wanted) == wanted
            due &= ((prefix & wanted) != wanted) & ((other & wanted) != wanted)
            evaluated += np.where(due, left, 0.0)
            left = np.where(due, left * selectivity, left)
        return evaluated

    def step_cpu(self, prefix: Ints, other: Ints) -> Floats:
        return self.constants.seconds(self.step_work(prefix, other))

    def append_work(self, masks: Ints) -> Floats:
        """Keeping a state: everything that flows into it goes out again. One flow for each stream in it."""
        work = np.zeros((*masks.shape, len(ACTIVITIES)))
        work[..., APPEND] = work[..., EXPIRE] = self.statistics.flow(masks) * popcount(masks)
        return work

    def append_cpu(self, masks: Ints) -> Floats:
        return self.constants.seconds(self.append_work(masks))

    def state_bytes(self, masks: Ints) -> Floats:
        """JTree eqs 3 and 5 in bytes."""
        members = popcount(masks)
        width = self.tuple_bytes.combined + self.tuple_bytes.reference * members
        for bit, row_bytes in enumerate(self.statistics.row_bytes):
            width = np.where(masks == 1 << bit, self.tuple_bytes.leaf + row_bytes, width)
        size: Floats = self.statistics.size(masks) * width
        return size

    def best_orders(self, inputs: Sequence[int]) -> list[list[int]]:
        """For each input of a node the cheapest order of the others, as positions in `inputs`."""
        key = tuple(inputs)
        if key not in self._orders:
            few = len(inputs) <= INPUTS_ORDERED_EXACTLY
            self._orders[key] = self._exact_orders(inputs) if few else greedy_orders(self.statistics, inputs)
        return self._orders[key]

    def _exact_orders(self, inputs: Sequence[int]) -> list[list[int]]:
        """From the whole backwards: the cheapest way on does not depend on how one came to a set of inputs."""
        count = len(inputs)
        unions = [sum(mask for bit, mask in enumerate(inputs) if part >> bit & 1) for part in range(1 << count)]
        moves = [(part, bit) for part in range(1, 1 << count) for bit in range(count) if not part >> bit & 1]
        costs = self.step_cpu(
            np.array([unions[part] for part, _ in moves], np.int64),
            np.array([inputs[bit] for _, bit in moves], np.int64),
        ).tolist()
        ways: dict[int, list[tuple[int, float]]] = {}
        for (part, bit), cost in zip(moves, costs, strict=True):
            ways.setdefault(part, []).append((bit, cost))
        rest = {(1 << count) - 1: 0.0}
        following: dict[int, int] = {}
        for part in range((1 << count) - 2, 0, -1):
            rest[part], following[part] = min((cost + rest[part | 1 << bit], bit) for bit, cost in ways[part])
        orders = []
        for first in range(count):
            part, order = 1 << first, []
            while part in following:
                order.append(following[part])
                part |= 1 << following[part]
            orders.append(order)
        return orders

    def node_steps(self, inputs: Sequence[int], orders: Sequence[Sequence[int]]) -> Steps:
        """All probing in a node: each input's tuples, once for each stream in it."""
        steps = []
        for first, order in enumerate(orders):
            prefix = inputs[first]
            for position in order:
                steps.append((prefix, inputs[position], inputs[first].bit_count()))
                prefix |= inputs[position]
        return Steps(*(np.array(each, np.int64) for each in zip(*steps, strict=True)))

    def steps_work(self, steps: Steps) -> Floats:
        """(steps, activities): per second, for all streams that take each step."""
        work: Floats = self.step_work(steps.prefix, steps.other) * steps.times[:, None]
        return work

    def walk(self, plan: Join) -> Walk:
        """Everything that a plan does, with the best orders in its nodes."""
        statistics = self.statistics
        orders: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {}
        kept: list[Node] = []
        steps: list[Steps] = []
        for node in nodes(plan):
            if node is not plan:
                kept.append(node)
            if isinstance(node, Join):
                inputs = [statistics.mask(each.streams) for each in node.inputs]
                chosen = self.best_orders(inputs)
                steps.append(self.node_steps(inputs, chosen))
                for each, order in zip(node.inputs, chosen, strict=True):
                    orders[each.streams] = tuple(node.inputs[position].streams for position in order)
        return Walk(
            steps=Steps(*(np.concatenate([getattr(each, name) for each in steps]) for name in Steps._fields)),
            kept=np.array([statistics.mask(node.streams) for node in kept], np.int64),
            states=tuple(node.streams for node in kept),
            orders=orders,
        )

    def cost(self, plan: Join) -> PlanCost:
        """The plan with the best orders in its nodes."""
        walk = self.walk(plan)
        work = self.steps_work(walk.steps).sum(axis=0) + self.append_work(walk.kept).sum(axis=0)
        rows, sizes = self.statistics.size(walk.kept).tolist(), self.state_bytes(walk.kept).tolist()
        return PlanCost(
            plan=plan,
            orders=walk.orders,
            cpu=float(self.constants.seconds(work)),
            memory_bytes=sum(sizes),
            states=tuple(StateCost(*each) for each in zip(walk.states, rows, sizes, strict=True)),
            work=dict(zip(ACTIVITIES, work.tolist(), strict=True)),
        )


def greedy_orders(statistics: Statistics, inputs: Sequence[int]) -> list[list[int]]:
    """The state next that leaves fewest combinations: JTree's Find_MJoin_Ordering, for many inputs.

    All inputs advance together, one state per round.
    """
    masks = np.array(inputs, np.int64)
    count = len(inputs)
    rows = np.arange(count)
    members = (masks[:, None] >> np.arange(len(statistics.streams))) & 1
    vectors = (statistics.rates ** members[:, :, None]).prod(axis=1)
    # Conditions over three streams and more are left out: they count when the order is costed. No share is nothing, so
    # that its logarithm is a number.
    logs = members @ np.log(np.maximum(statistics.between, 1e-30)) @ members.T
    crossing, inside = np.exp(logs), np.exp(np.diag(logs) / 2)
    weighted = (vectors * statistics.weights * inside[:, None]).T
    prefix, seen = vectors.copy(), crossing.copy()
    ahead = np.broadcast_to(statistics.window_s ** popcount(masks).astype(np.float64), (count, count))
    probed = np.eye(count, dtype=bool)
    orders = np.zeros((count - 1, count), np.int64)
    for number in range(count - 1):
        left = (prefix @ weighted) * seen * ahead
        chosen = np.where(probed, np.inf, left).argmin(axis=1)
        orders[number] = chosen
        prefix *= vectors[chosen]
        seen *= crossing[chosen]
        probed[rows, chosen] = True
    return [order.tolist() for order in orders.T]


def nodes(plan: Node) -> list[Node]:
    """Bottom up."""
    if isinstance(plan, Leaf):
        return [plan]
    return [node for each in plan.inputs for node in nodes(each)] + [plan]


def canonical(plan: Join, streams: Sequence[str]) -> Join:
    """The same plan with the inputs of each node in the order of their first streams."""
    place = {stream: number for number, stream in enumerate(streams)}

    def ordered(node: Node) -> Node:
        if isinstance(node, Leaf):
            return node
        inputs = sorted(
            (ordered(each) for each in node.inputs), key=lambda each: min(map(place.__getitem__, each.streams))
        )
        return Join(tuple(inputs))

    root = ordered(plan)
    assert isinstance(root, Join)
    return root


def kind_of(plan: Join) -> str:
    """Mjoin, bjtree or jtree, as JTree section 1.2 and its definition 3 name them."""
    joins = [node for node in nodes(plan) if isinstance(node, Join)]
    if len(joins) == 1:
        return "mjoin"
    return "bjtree" if all(len(node.inputs) == 2 for node in joins) else "jtree"


def path(plan: Join, stream: str, orders: Orders) -> list[Step]:
    """What a new tuple of `stream` goes through, with the order of its input in every node (plans.tree.path has one
    order for all)."""
    return _path(plan, stream, orders, is_root=True)


def _path(node: Node, stream: str, orders: Orders, *, is_root: bool) -> list[Step]:
    if isinstance(node, Leaf):
        return []
    own = next(each for each in node.inputs if stream in each.streams)
    others = orders[own.streams]
    keep = None if is_root else node.streams
    steps = [Step(other, keep if number == len(others) - 1 else None) for number, other in enumerate(others)]
    return _path(own, stream, orders, is_root=False) + steps
