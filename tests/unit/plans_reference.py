"""Naive twins of `plans`: all trees, costs straight from the definitions, and a join that counts what it does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from plans.costs import CostModel, Orders, TupleBytes, nodes, path
from plans.statistics import Condition, Statistics
from plans.tree import Join, Leaf, Node
from plans.work import ACTIVITIES


def partitions(items: Sequence[str]) -> Iterator[list[list[str]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for number, block in enumerate(rest):
            yield [*rest[:number], [items[0], *block], *rest[number + 1 :]]


def all_plans(streams: Sequence[str]) -> list[Join]:
    return [tree for tree in all_trees(streams) if isinstance(tree, Join)]


def all_trees(streams: Sequence[str]) -> list[Node]:
    """1, 4, 26, 236, 2752 trees for 2, 3, 4, 5, 6 streams (Schröder's fourth problem)."""
    if len(streams) == 1:
        return [Leaf(streams[0])]
    found: list[Node] = []
    for blocks in partitions(streams):
        if len(blocks) > 1:
            found += [Join(inputs) for inputs in itertools.product(*map(all_trees, blocks))]
    return found


def density(statistics: Statistics, streams: frozenset[str]) -> float:
    total = 0.0
    for key, weight in enumerate(statistics.weights.tolist()):
        for stream in streams:
            weight *= statistics.rates[statistics.streams.index(stream), key]
        total += weight
    for edge in statistics.edges:
        if edge.streams <= streams:
            total *= edge.selectivity
    return total


def passing(statistics: Statistics, streams: frozenset[str]) -> float:
    share = 1.0
    for condition in statistics.conditions:
        if condition.streams <= streams:
            share *= condition.selectivity
    return share


def step_cost(model: CostModel, prefix: frozenset[str], other: frozenset[str]) -> float:
    known, constants = model.statistics, model.constants
    window, late = known.window_s, known.lateness_s
    met = density(known, prefix | other) * passing(known, prefix) * passing(known, other)
    newest = window ** (len(prefix) - 1)
    live = window ** (len(other) - 1) * (window + len(other) * late)
    pairs = met * window ** (len(prefix) + len(other) - 1)
    evaluated, left = 0.0, 1.0
    for condition in known.conditions:
        if condition.streams <= prefix | other and not condition.streams <= prefix and not condition.streams <= other:
            evaluated += left
            left *= condition.selectivity
    return float(
        constants.probe_s * density(known, prefix) * passing(known, prefix) * newest
        + constants.candidate_s * met * newest * live
        + constants.pair_s * pairs
        + constants.condition_s * pairs * evaluated
        + constants.step_s * model.batches_per_s
    )


def naive_cost(model: CostModel, plan: Join) -> tuple[float, float]:
    """CPU and memory, the order of every input by trying all of them."""
    known, constants, widths = model.statistics, model.constants, model.tuple_bytes
    cpu = memory = 0.0
    for node in nodes(plan):
        streams, members = frozenset(node.streams), len(node.streams)
        met = density(known, streams) * passing(known, streams) * known.window_s ** (members - 1)
        if node is not plan:
            cpu += (constants.append_s + constants.expire_s) * met * members
            memory += met * (known.window_s + members * known.lateness_s) * _width(known, node, widths)
        if isinstance(node, Join):
            inputs = [frozenset(each.streams) for each in node.inputs]
            for own in inputs:
                others = [each for each in inputs if each != own]
                cpu += len(own) * min(order_cost(model, own, order) for order in itertools.permutations(others))
    return cpu, memory


def order_cost(model: CostModel, own: frozenset[str], order: Sequence[frozenset[str]]) -> float:
    cost, prefix = 0.0, own
    for other in order:
        cost += step_cost(model, prefix, other)
        prefix |= other
    return cost


def _width(known: Statistics, node: Node, widths: TupleBytes) -> float:
    if isinstance(node, Leaf):
        return widths.leaf + known.row_bytes[known.streams.index(node.stream)]
    return widths.combined + widths.reference * len(node.streams)


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats: by definition, not by sorting."""
    return sorted(
        point
        for point in set(points)
        if not any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)
    )


@dataclass(frozen=True)
class Row:
    stream: str
    key: int
    at: float


Combination = dict[str, Row]


@dataclass
class CountingJoin:
    """The symmetric window join over a plan, tuple by tuple, with plain lists; counts every activity."""

    plan: Join
    orders: Orders
    window_s: float
    lateness_s: float
    conditions: Sequence[Condition] = ()
    counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ACTIVITIES, 0))
    states: dict[frozenset[str], list[Combination]] = field(default_factory=dict)
    results: int = 0

    def insert(self, row: Row) -> None:
        self._purge(row.at - self.lateness_s - self.window_s)
        moving: list[Combination] = [{row.stream: row}]
        for step in path(self.plan, row.stream, self.orders):
            moving = [pair for each in moving for pair in self._probe(each, step.other)]
            if step.keep is not None:
                self._append(frozenset(step.keep), moving)
        self._append(frozenset([row.stream]), [{row.stream: row}])
        self.results += len(moving)

    def _purge(self, horizon: float) -> None:
        for streams, tuples in self.states.items():
            left = [each for each in tuples if min(row.at for row in each.values()) >= horizon]
            self.counted["expire"] += len(tuples) - len(left)
            self.states[streams] = left

    def _append(self, streams: frozenset[str], tuples: list[Combination]) -> None:
        self.counted["append"] += len(tuples)
        self.states.setdefault(streams, []).extend(tuples)

    def _probe(self, each: Combination, other: tuple[str, ...]) -> Iterator[Combination]:
        self.counted["probe"] += 1
        key = next(iter(each.values())).key
        for stored in self.states.get(frozenset(other), []):
            if next(iter(stored.values())).key != key:
                continue
            self.counted["candidate"] += 1
            pair = each | stored
            times = [row.at for row in pair.values()]
            if max(times) - min(times) > self.window_s:
                continue
            self.counted["pair"] += 1
            if all(self._holds(condition, each, stored, pair) for condition in self.conditions):
                yield pair

    def _holds(self, condition: Condition, each: Combination, stored: Combination, pair: Combination) -> bool:
        wanted = condition.streams
        if not wanted <= pair.keys() or wanted <= each.keys() or wanted <= stored.keys():
            return True
        self.counted["condition"] += 1
        # Chance, but the same for the same rows in whatever plan.
        text = " ".join(f"{stream}{pair[stream].at}" for stream in sorted(wanted))
        return random.Random(text).random() < condition.selectivity


def steady_rows(statistics: Statistics, seconds: float, seed: int) -> list[Row]:
    """Rows of each stream and key, one at a random moment of each period, in the order of their times."""
    chance = random.Random(seed)
    rows = []
    for number, stream in enumerate(statistics.streams):
        for key in range(statistics.weights.size):
            rate = float(statistics.rates[number, key])
            rows += [Row(stream, key, (count + chance.random()) / rate) for count in range(int(seconds * rate))]
    return sorted(rows, key=lambda row: row.at)
