"""JTree's two-layer plan generation (its section 5): polynomial, for more streams than the exact search takes.

    layer one   the best mjoin, least in memory, and a good bjtree, usually least in CPU         algorithm 2
    layer two   state selection: from the mjoin, keep states that save CPU                       algorithm 3
                state removal: from the bjtree, drop states that free memory                     algorithm 4

Plans come out one by one in the paper's order; its answer is the first that qualifies, ours the cheapest that does.
Where we differ from the printed algorithms:

- Algorithm 2 gives up where the bjtree needs more CPU than there is (line 10). A bjtree is not the minimum: keeping a
  state may cost more than computing it again (its own eqs 6 and 7). So layer two goes on. It gives up for memory only:
  every plan has all leaves, and an mjoin has nothing else.
- Algorithm 3 goes on with the old edges after a merge has changed the graph: a break is missing after line 13. It
  gives up when one merge exceeds the memory (line 15): another edge may not. Its weight lacks the window: a state has
  λ_x λ_y σ W² tuples, not λ_x λ_y σ; it matters once merged inputs are compared with plain ones.
- Which edge a step of a join order uses is left open for graphs with cycles; here it is the most selective one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from plans.costs import CostModel, greedy_orders, nodes
from plans.statistics import Floats, Ints, popcount
from plans.tree import Join, Leaf, Node


@dataclass(frozen=True)
class Candidate:
    """A plan that was looked at, its needs, and which part of the algorithm made it."""

    plan: Join
    cpu: float
    memory_bytes: float
    origin: str


def candidates(model: CostModel, memory_bytes: float = math.inf) -> Iterator[Candidate]:
    """Algorithm 2: plans in the order in which they are tried."""
    build = _Builder(model)
    mjoin = Join(tuple(Leaf(stream) for stream in model.statistics.streams))
    first = build.candidate(mjoin, "mjoin")
    yield first
    if first.memory_bytes > memory_bytes or len(mjoin.inputs) < 3:
        return
    second = min((build.candidate(each, "bjtree") for each in _bjtrees(build)), key=lambda each: each.cpu)
    yield second
    yield from _state_selection(build, first, memory_bytes)
    yield from _state_removal(build, second)


class _Builder:
    """Costs of trees with greedy orders; nodes that were seen before are not costed again."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.statistics = model.statistics
        self._nodes: dict[tuple[int, ...], float] = {}
        self._orders: dict[tuple[int, ...], list[list[int]]] = {}
        self._kept: dict[int, tuple[float, float, float]] = {}

    def mask(self, node: Node) -> int:
        return self.statistics.mask(node.streams)

    def node_cpu(self, inputs: Sequence[int]) -> float:
        key = tuple(sorted(inputs))
        if key not in self._nodes:
            work = self.model.steps_work(self.model.node_steps(key, self.orders(key)))
            self._nodes[key] = float(self.model.constants.seconds(work).sum())
        return self._nodes[key]

    def orders(self, inputs: Sequence[int]) -> list[list[int]]:
        key = tuple(inputs)
        if key not in self._orders:
            self._orders[key] = greedy_orders(self.statistics, key)
        return self._orders[key]

    def kept(self, mask: int) -> tuple[float, float, float]:
        """CPU, bytes and rows of a state."""
        if mask not in self._kept:
            one = np.array([mask])
            self._kept[mask] = (
                float(self.model.append_cpu(one)[0]),
                float(self.model.state_bytes(one)[0]),
                float(self.statistics.size(one)[0]),
            )
        return self._kept[mask]

    def needs(self, plan: Join) -> tuple[float, float]:
        """CPU and memory."""
        cpu = memory = 0.0
        for node in nodes(plan):
            if isinstance(node, Join):
                cpu += self.node_cpu([self.mask(each) for each in node.inputs])
            if node is not plan:
                keep = self.kept(self.mask(node))
                cpu, memory = cpu + keep[0], memory + keep[1]
        return cpu, memory

    def candidate(self, plan: Join, origin: str) -> Candidate:
        cpu, memory = self.needs(plan)
        return Candidate(plan, cpu, memory, origin)


def _bjtrees(build: _Builder) -> Iterator[Join]:
    """Greedy operator ordering: join the two that give the smallest state, or the one that costs least CPU to have."""
    for by_cpu in (False, True):
        inputs: list[Node] = [Leaf(stream) for stream in build.statistics.streams]
        masks = [build.mask(each) for each in inputs]
        while len(inputs) > 2:
            pairs = list(itertools.combinations(range(len(inputs)), 2))
            unions = np.array([masks[one] | masks[two] for one, two in pairs])
            weight = build.model.append_cpu(unions) if by_cpu else build.statistics.size(unions)
            if by_cpu:
                ones, twos = (np.array([masks[pair[side]] for pair in pairs]) for side in (0, 1))
                weight = weight + _both_ways(build.model, ones, twos)
            one, two = pairs[int(weight.argmin())]
            joined = Join((inputs[one], inputs[two]))
            inputs = [*(each for at, each in enumerate(inputs) if at not in (one, two)), joined]
            masks = [build.mask(each) for each in inputs]
        yield Join(tuple(inputs))


def _both_ways(model: CostModel, ones: Ints, twos: Ints) -> Floats:
    """CPU of binary joins: tuples of each side probe the other."""
    members = [popcount(each) for each in (ones, twos)]
    cost: Floats = members[0] * model.step_cpu(ones, twos) + members[1] * model.step_cpu(twos, ones)
    return cost


def _state_selection(build: _Builder, start: Candidate, memory_bytes: float) -> Iterator[Candidate]:
    """Algorithm 3: merge two inputs whose state is small and often needed, as long as that saves CPU."""
    current = start
    while len(current.plan.inputs) > 2:
        for one, two in _edges_by_use(build, current.plan):
            better = _merged(build, current, one, two, memory_bytes)
            if better is not None:
                current = better
                break
        else:
            return
        yield current


def _edges_by_use(build: _Builder, plan: Join) -> list[tuple[int, int]]:
    """Pairs of inputs, the largest frequency / weight first (JTree section 5.2, figure 9)."""
    inputs = [build.mask(each) for each in plan.inputs]
    count = len(inputs)
    pairs = list(itertools.combinations(range(count), 2))
    unions = np.array([inputs[one] | inputs[two] for one, two in pairs])
    weights = build.statistics.size(unions)
    alone = build.statistics.size(np.array(inputs))
    share = np.full((count, count), np.inf)
    for (one, two), rows in zip(pairs, weights.tolist(), strict=True):
        both = alone[one] * alone[two]
        share[one, two] = share[two, one] = rows / both if both > 0 else 0.0
    frequency = np.zeros((count, count))
    for first, order in enumerate(build.orders(tuple(inputs))):
        prefix = [first]
        for position in order:
            nearest = prefix[int(share[position, prefix].argmin())]
            frequency[min(nearest, position), max(nearest, position)] += 1
            prefix.append(position)
    uses = np.array([frequency[pair] for pair in pairs])
    worth = uses / np.maximum(weights, 1e-300)
    # Edges that no order uses are tried last: without them a cheap state may stay out of reach.
    return [pairs[at] for at in np.lexsort((weights, -worth)).tolist()]


def _merged(build: _Builder, current: Candidate, one: int, two: int, memory_bytes: float) -> Candidate | None:
    """The plan with two inputs merged, if it fits and needs less CPU. Line 9, Optimize: an input that is a join itself
    may dissolve into the new one (figure 11), which frees its state."""
    inputs = current.plan.inputs
    rest = tuple(each for at, each in enumerate(inputs) if at not in (one, two))
    ways = itertools.product(
        *([(each,), each.inputs] if isinstance(each, Join) else [(each,)] for each in (inputs[one], inputs[two]))
    )
    found = [build.candidate(Join((*rest, Join((*left, *right)))), "state selection") for left, right in ways]
    fitting = [each for each in found if each.memory_bytes <= memory_bytes and each.cpu < current.cpu]
    return min(fitting, key=lambda each: each.cpu, default=None)


def _state_removal(build: _Builder, start: Candidate) -> Iterator[Candidate]:
    """Algorithm 4: dissolve the state that costs least CPU per row of memory that it frees, until none is left."""
    current = start
    while True:
        inner = [node for node in nodes(current.plan) if isinstance(node, Join) and node is not current.plan]
        if not inner:
            return
        tried: list[tuple[float, int, Candidate]] = []
        for node in inner:
            candidate = build.candidate(_dissolved(current.plan, node), "state removal")
            freed = build.kept(build.mask(node))[2]
            extra = candidate.cpu - current.cpu
            ratio = extra / freed if freed > 0 else math.copysign(math.inf, extra) if extra else 0.0
            tried.append((ratio, len(tried), candidate))
        current = min(tried)[2]
        yield current


def _dissolved(plan: Join, gone: Node) -> Join:
    """The plan whose parent of `gone` takes its inputs instead."""
    inputs: list[Node] = []
    for each in plan.inputs:
        if each is gone and isinstance(each, Join):
            inputs += each.inputs
        else:
            inputs.append(_dissolved(each, gone) if isinstance(each, Join) else each)
    return Join(tuple(inputs))
