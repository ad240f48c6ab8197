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
from typing import NamedTuple

import numpy as np

from plans.costs import CostModel, greedy_orders
from plans.statistics import Floats, Ints, popcount
from plans.tree import Join, Leaf, Node


@dataclass(frozen=True)
class Candidate:
    """A plan that was looked at, its needs, and which part of the algorithm made it."""

    plan: Join
    cpu: float
    memory_bytes: float
    origin: str


class _Tree(NamedTuple):
    """A plan's node with its set of streams, which a tree of names would have to collect again and again."""

    mask: int
    inputs: tuple[_Tree, ...] = ()

    def nodes(self) -> Iterator[_Tree]:
        for each in self.inputs:
            yield from each.nodes()
        yield self


class _Plan(NamedTuple):
    tree: _Tree
    cpu: float
    memory_bytes: float


def candidates(model: CostModel, memory_bytes: float = math.inf) -> Iterator[Candidate]:
    """Algorithm 2: plans in the order in which they are tried."""
    build = _Builder(model)
    leaves = tuple(_Tree(1 << bit) for bit in range(len(model.statistics.streams)))
    first = build.plan(_join(leaves))
    yield build.candidate(first, "mjoin")
    if first.memory_bytes > memory_bytes or len(leaves) < 3:
        return
    second = min((build.plan(tree) for tree in _bjtrees(build, leaves)), key=lambda plan: plan.cpu)
    yield build.candidate(second, "bjtree")
    for plan in _state_selection(build, first, memory_bytes):
        yield build.candidate(plan, "state selection")
    for plan in _state_removal(build, second):
        yield build.candidate(plan, "state removal")


def _join(inputs: Sequence[_Tree]) -> _Tree:
    return _Tree(sum(each.mask for each in inputs), tuple(inputs))


class _Builder:
    """Costs of trees with greedy orders; nodes that were seen before are not costed again."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.statistics = model.statistics
        self._nodes: dict[tuple[int, ...], float] = {}
        self._orders: dict[tuple[int, ...], list[list[int]]] = {}
        self._kept: dict[int, tuple[float, float, float]] = {}

    def node_cpu(self, inputs: Sequence[int]) -> float:
        key = tuple(sorted(inputs))
        if key not in self._nodes:
            work = self.model.steps_work(self.model.node_steps(key, self.orders(key)))
            self._nodes[key] = float(self.model.constants.seconds(work).sum())
        return self._nodes[key]

    def orders(self, inputs: tuple[int, ...]) -> list[list[int]]:
        if inputs not in self._orders:
            self._orders[inputs] = greedy_orders(self.statistics, inputs)
        return self._orders[inputs]

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

    def plan(self, tree: _Tree) -> _Plan:
        cpu = memory = 0.0
        for node in tree.nodes():
            if node.inputs:
                cpu += self.node_cpu([each.mask for each in node.inputs])
            if node is not tree:
                keep = self.kept(node.mask)
                cpu, memory = cpu + keep[0], memory + keep[1]
        return _Plan(tree, cpu, memory)

    def candidate(self, plan: _Plan, origin: str) -> Candidate:
        root = self._named(plan.tree)
        assert isinstance(root, Join)
        return Candidate(root, plan.cpu, plan.memory_bytes, origin)

    def _named(self, tree: _Tree) -> Node:
        if not tree.inputs:
            return Leaf(self.statistics.names(tree.mask)[0])
        return Join(tuple(self._named(each) for each in tree.inputs))


def _bjtrees(build: _Builder, leaves: Sequence[_Tree]) -> Iterator[_Tree]:
    """Greedy operator ordering: join the two that give the smallest state, or the one that costs least CPU to have."""
    for by_cpu in (False, True):
        inputs = list(leaves)
        while len(inputs) > 2:
            pairs = list(itertools.combinations(inputs, 2))
            ones, twos = (np.array([pair[side].mask for pair in pairs]) for side in (0, 1))
            if by_cpu:
                weight = build.model.append_cpu(ones | twos) + _both_ways(build.model, ones, twos)
            else:
                weight = build.statistics.size(ones | twos)
            one, two = pairs[int(weight.argmin())]
            inputs = [*(each for each in inputs if each is not one and each is not two), _join((one, two))]
        yield _join(inputs)


def _both_ways(model: CostModel, ones: Ints, twos: Ints) -> Floats:
    """CPU of binary joins: tuples of each side probe the other."""
    cost: Floats = popcount(ones) * model.step_cpu(ones, twos) + popcount(twos) * model.step_cpu(twos, ones)
    return cost


def _state_selection(build: _Builder, start: _Plan, memory_bytes: float) -> Iterator[_Plan]:
    """Algorithm 3: merge two inputs whose state is small and often needed, as long as that saves CPU."""
    current = start
    while len(current.tree.inputs) > 2:
        for one, two in _edges_by_use(build, current.tree):
            better = _merged(build, current, one, two, memory_bytes)
            if better is not None:
                current = better
                break
        else:
            return
        yield current


def _edges_by_use(build: _Builder, tree: _Tree) -> list[tuple[int, int]]:
    """Pairs of inputs, the largest frequency / weight first (JTree section 5.2, figure 9)."""
    inputs = tuple(each.mask for each in tree.inputs)
    count = len(inputs)
    pairs = list(itertools.combinations(range(count), 2))
    ones, twos = np.array(pairs).T
    masks = np.array(inputs)
    weights = build.statistics.size(masks[ones] | masks[twos])
    alone = build.statistics.size(masks)
    share = np.full((count, count), np.inf)
    share[ones, twos] = share[twos, ones] = weights / np.maximum(alone[ones] * alone[twos], 1e-300)
    frequency = np.zeros((count, count))
    for first, order in enumerate(build.orders(inputs)):
        prefix = [first]
        for position in order:
            nearest = prefix[int(share[position, prefix].argmin())]
            frequency[min(nearest, position), max(nearest, position)] += 1
            prefix.append(position)
    worth = frequency[ones, twos] / np.maximum(weights, 1e-300)
    # Edges that no order uses are tried last: without them a cheap state may stay out of reach.
    return [pairs[at] for at in np.lexsort((weights, -worth)).tolist()]


def _merged(build: _Builder, current: _Plan, one: int, two: int, memory_bytes: float) -> _Plan | None:
    """The plan with two inputs merged, if it fits and needs less CPU. Line 9, Optimize: an input that is a join itself
    may dissolve into the new one (figure 11), which frees its state."""
    inputs = current.tree.inputs
    rest = tuple(each for at, each in enumerate(inputs) if at not in (one, two))
    ways = ([(each,), each.inputs] if each.inputs else [(each,)] for each in (inputs[one], inputs[two]))
    made = [build.plan(_join((*rest, _join((*left, *right))))) for left, right in itertools.product(*ways)]
    fitting = [each for each in made if each.memory_bytes <= memory_bytes and each.cpu < current.cpu]
    return min(fitting, key=lambda plan: plan.cpu, default=None)


def _state_removal(build: _Builder, start: _Plan) -> Iterator[_Plan]:
    """Algorithm 4: dissolve the state that costs least CPU per row of memory that it frees, until none is left."""
    current = start
    while inner := [node for node in current.tree.nodes() if node.inputs and node is not current.tree]:
        tried: list[tuple[float, int, _Plan]] = []
        for node in inner:
            plan = build.plan(_dissolved(current.tree, node))
            freed = build.kept(node.mask)[2]
            extra = plan.cpu - current.cpu
            ratio = extra / freed if freed > 0 else math.copysign(math.inf, extra) if extra else 0.0
            tried.append((ratio, len(tried), plan))
        current = min(tried)[2]
        yield current


def _dissolved(tree: _Tree, gone: _Tree) -> _Tree:
    """The plan whose parent of `gone` takes its inputs instead."""
    inputs: list[_Tree] = []
    for each in tree.inputs:
        if each is gone:
            inputs += each.inputs
        else:
            inputs.append(_dissolved(each, gone) if each.mask & gone.mask else each)
    return _Tree(tree.mask, tuple(inputs))
