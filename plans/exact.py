"""Exact search over all trees, for CPU and memory at once, up to 8 streams.

It does what JTree-Finder (JTree algorithm 1) promises. That goes through all partitions of all sets of streams and
keeps every sub-plan within the limits. (As printed it always returns -1: line 14 tests SubPlans[n], but whole plans go
into Q and that set stays empty.) Two facts make it fast enough to run while a query does:

- A node's CPU depends on the sets it joins, not on the trees below. So of all sub-plans of a set only those matter that
  no other beats in both CPU and memory: a Pareto front per set. A node's front is the sum of its inputs' fronts.
- The best order for a node's input is the shortest way through pairs (prefix, states still to probe), which all nodes
  share: eight streams have 94,828 of them where a loop over partitions and orders would have millions. They are laid
  out once as arrays (`_lattice`), and costs go through them level by level.

Limits are applied at the end: the whole front says which limit was missed and by how much.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from plans.costs import CostModel
from plans.statistics import Floats, Ints, popcount
from plans.tree import Join, Leaf, Node

STREAMS_MAX: Final = 8


@dataclass(frozen=True)
class Point:
    """A plan on the front."""

    plan: Join
    cpu: float
    memory_bytes: float


@dataclass(frozen=True, eq=False)
class _Lattice:
    """All ways to have a prefix of streams and blocks still to join; sorted by the number of blocks."""

    prefix: Ints
    union: Ints
    """Prefix and blocks together."""
    blocks: Ints
    """(entries, streams): sets of streams, 0 where there are fewer blocks."""
    following: Ints
    """(entries, streams): the entry where that block is part of the prefix."""
    levels: tuple[slice, ...]
    """Entries with 0, 1, 2 ... blocks."""


@dataclass(frozen=True, eq=False)
class _Front:
    """Sub-plans of one set that no other one beats, cheapest CPU first. Keeping the state itself is included."""

    cpu: Floats
    memory: Floats
    entry: Ints
    """Which partition of the set."""
    choice: Ints
    """(points, streams): which point of the front of each block."""


@lru_cache(maxsize=STREAMS_MAX)
def _lattice(streams: int) -> _Lattice:
    # Labels per stream: 0 absent, 1 in the prefix, 2 ... the blocks in the order in which they begin. Each new stream
    # may take any label so far or open the next block, so entries come sorted by their labels read as digits.
    labels = np.zeros((1, 0), np.int64)
    for _ in range(streams):
        most = np.maximum(labels.max(axis=1, initial=1), 1) + 2
        ends = np.cumsum(most)
        label = np.arange(ends[-1]) - np.repeat(ends - most, most)
        labels = np.concatenate([np.repeat(labels, most, axis=0), label[:, None]], axis=1)
    digits = (streams + 2) ** np.arange(streams - 1, -1, -1)
    bits = 1 << np.arange(streams)
    codes = labels @ digits
    count = np.maximum(labels.max(axis=1) - 1, 0)
    blocks = np.zeros((len(codes), streams), np.int64)
    following = np.zeros((len(codes), streams), np.int64)
    for block in range(streams):
        rows = np.flatnonzero(count > block)
        here = labels[rows]
        blocks[rows, block] = (here == block + 2) @ bits
        # That block joins the prefix, later blocks move up: the digits of another entry.
        moved = codes[rows] - ((here == block + 2) * (block + 1) + (here > block + 2)) @ digits
        following[rows, block] = np.searchsorted(codes, moved)
    order = np.argsort(count, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    bounds = np.searchsorted(count[order], np.arange(streams + 2))
    prefix = (labels == 1) @ bits
    return _Lattice(
        prefix=prefix[order],
        union=((labels > 0) @ bits)[order],
        blocks=blocks[order],
        following=rank[following[order]],
        levels=tuple(slice(first, last) for first, last in itertools.pairwise(bounds.tolist())),
    )


def pareto_front(model: CostModel) -> list[Point]:
    """Every plan that no other one beats in both CPU and memory, cheapest CPU first."""
    streams = len(model.statistics.streams)
    if not 2 <= streams <= STREAMS_MAX:
        raise ValueError(f"an exact search takes 2 to {STREAMS_MAX} streams")
    lattice = _lattice(streams)
    search = _Search(model, lattice, _node_costs(model, lattice))
    return search.points()


def best_bjtree(model: CostModel) -> Join:
    """The binary tree with the least CPU (JTree's Find_BJTree_Ordering, exactly)."""
    lattice = _lattice(len(model.statistics.streams))
    costs = _node_costs(model, lattice)
    masks = np.arange(model.statistics.everything + 1)
    keep = model.append_cpu(masks).tolist()
    best = {1 << bit: (keep[1 << bit], (0, 0)) for bit in range(len(model.statistics.streams))}
    level = lattice.levels[2]
    rows = np.arange(level.start, level.stop)
    rows = rows[lattice.prefix[rows] == 0]
    rows = rows[np.argsort(popcount(lattice.union[rows]), kind="stable")]
    for union, (one, two, *_), cost in zip(
        lattice.union[rows].tolist(), lattice.blocks[rows].tolist(), costs[rows].tolist(), strict=True
    ):
        cpu = cost + best[one][0] + best[two][0] + keep[union]
        if union not in best or cpu < best[union][0]:
            best[union] = cpu, (one, two)

    def tree(mask: int) -> Node:
        one, two = best[mask][1]
        return Join((tree(one), tree(two))) if one else Leaf(model.statistics.names(mask)[0])

    root = tree(model.statistics.everything)
    assert isinstance(root, Join)
    return root


def _node_costs(model: CostModel, lattice: _Lattice) -> Floats:
    """CPU of a node for each entry without a prefix: its blocks are the node's inputs, each in its best order."""
    count = len(lattice.prefix)
    rest = np.zeros(count)
    masks = np.arange(model.statistics.everything + 1)
    every = model.step_cpu(*np.meshgrid(masks, masks, indexing="ij"))
    for number, level in enumerate(lattice.levels[1:], start=1):
        prefix = lattice.prefix[level, None]
        blocks, following = lattice.blocks[level, :number], lattice.following[level, :number]
        ways = rest[following]
        rest[level] = np.where(
            prefix[:, 0] > 0,
            (every[prefix, blocks] + ways).min(axis=1),
            (popcount(blocks) * ways).sum(axis=1),
        )
    return rest


class _Search:
    """Fronts of all sets, small ones first."""

    def __init__(self, model: CostModel, lattice: _Lattice, costs: Floats) -> None:
        self.model, self.lattice, self.costs = model, lattice, costs
        self.streams = len(model.statistics.streams)
        masks = np.arange(model.statistics.everything + 1)
        self.keep_cpu = model.append_cpu(masks)
        self.keep_memory = model.state_bytes(masks)
        self.fronts: dict[int, _Front] = {}
        self.ends = np.zeros((2, 2, masks.size))
        """CPU and memory of each front's first and last point: cheapest in CPU, cheapest in memory."""

    def points(self) -> list[Point]:
        everything = self.model.statistics.everything
        self.keep_cpu[everything] = self.keep_memory[everything] = 0.0
        rows = np.flatnonzero((self.lattice.prefix == 0) & (self.lattice.blocks[:, 1] > 0))
        rows = rows[np.argsort(self.lattice.union[rows], kind="stable")]
        unions = self.lattice.union[rows]
        starts = np.searchsorted(unions, np.arange(everything + 2))
        for mask in range(1, everything + 1):
            # In this order every subset comes before the set.
            entries = rows[starts[mask] : starts[mask + 1]]
            front = self._front(mask, entries) if entries.size else self._leaf(mask)
            self.fronts[mask] = front
            self.ends[:, 0, mask] = front.cpu[0], front.memory[0]
            self.ends[:, 1, mask] = front.cpu[-1], front.memory[-1]
        whole = self.fronts[everything]
        found = []
        for index in range(whole.cpu.size):
            plan = self._tree(everything, index)
            assert isinstance(plan, Join)
            found.append(Point(plan, float(whole.cpu[index]), float(whole.memory[index])))
        return found

    def _leaf(self, mask: int) -> _Front:
        none = np.zeros((1, self.streams), np.int64)
        return _Front(self.keep_cpu[[mask]], self.keep_memory[[mask]], none[:, 0], none)

    def _front(self, mask: int, entries: Ints) -> _Front:
        blocks = self.lattice.blocks[entries]
        node_cpu = self.costs[entries] + self.keep_cpu[mask]
        (cpu_first, cpu_last), (memory_first, memory_last) = self.ends[:, :, blocks].sum(axis=-1)
        memory_first, memory_last = memory_first + self.keep_memory[mask], memory_last + self.keep_memory[mask]
        cpu_first, cpu_last = cpu_first + node_cpu, cpu_last + node_cpu
        lengths = np.array([self.fronts[each].cpu.size if each else 1 for each in range(mask)])
        last = np.maximum(lengths, 1)[blocks] - 1
        # Both ends of each partition's front are known at once, and make a front of their own.
        cpu = np.concatenate([cpu_first, cpu_last])
        memory = np.concatenate([memory_first, memory_last])
        entry = np.concatenate([entries, entries])
        choice = np.concatenate([np.zeros_like(last), last])
        kept = undominated(cpu, memory)
        cpu, memory, entry, choice = cpu[kept], memory[kept], entry[kept], choice[kept]
        # Between its ends a partition can only bring what is dearer than both the first's CPU and the last's memory.
        better = np.searchsorted(cpu, cpu_first, side="right") - 1
        open_ = np.where(better >= 0, memory[better] > memory_last, True) & (last.sum(axis=1) > 1)
        parts = [(cpu, memory, entry, choice)]
        for row in np.flatnonzero(open_).tolist():
            parts.append(self._sums(mask, int(entries[row]), float(node_cpu[row])))
        if len(parts) > 1:
            cpu, memory = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
            kept = undominated(cpu, memory)
            cpu, memory = cpu[kept], memory[kept]
            entry = np.concatenate([part[2] for part in parts])[kept]
            choice = np.concatenate([part[3] for part in parts])[kept]
        return _Front(cpu, memory, entry, choice)

    def _sums(self, mask: int, entry: int, node_cpu: float) -> tuple[Floats, Floats, Ints, Ints]:
        """A partition's whole front: one point of each block's front, in all combinations that are worth it."""
        cpu, memory = np.array([node_cpu]), np.array([float(self.keep_memory[mask])])
        choice = np.zeros((1, self.streams), np.int64)
        for position, block in enumerate(self.lattice.blocks[entry].tolist()):
            if not block:
                break
            front = self.fronts[block]
            cpu = (cpu[:, None] + front.cpu).ravel()
            memory = (memory[:, None] + front.memory).ravel()
            if front.cpu.size > 1:
                choice = np.repeat(choice, front.cpu.size, axis=0)
                choice[:, position] = np.tile(np.arange(front.cpu.size), choice.shape[0] // front.cpu.size)
                kept = undominated(cpu, memory)
                cpu, memory, choice = cpu[kept], memory[kept], choice[kept]
        return cpu, memory, np.full(cpu.size, entry), choice

    def _tree(self, mask: int, index: int) -> Node:
        if not mask & (mask - 1):
            return Leaf(self.model.statistics.names(mask)[0])
        front = self.fronts[mask]
        blocks = [block for block in self.lattice.blocks[int(front.entry[index])].tolist() if block]
        choice = front.choice[index].tolist()
        return Join(tuple(self._tree(block, choice[position]) for position, block in enumerate(blocks)))


def undominated(cpu: Floats, memory: Floats) -> Ints:
    """Positions of points that no other one beats or equals, by rising CPU and falling memory."""
    order = np.lexsort((memory, cpu))
    sorted_memory = memory[order]
    best = np.minimum.accumulate(sorted_memory)
    kept: Ints = order[np.concatenate([[True], sorted_memory[1:] < best[:-1]])]
    return kept
