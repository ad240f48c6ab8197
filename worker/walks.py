"""The way of a stream's tuples through a plan, and through two plans at once. Pure.

States are known by their set of streams (PTLB/MSLB section 4.1; MS/PT section 4.1.2, state matching): `(A B)` and
`(B A)` are one state. Two plans over the same streams have leaves and root in common, and perhaps states between them.
The sets that both have form a laminar family; a *task* is what lies between one of them and the next smaller ones
(HybMig section 3.1, decomposition). Inside a task the plans differ, or the task is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plans.tree import Join, Leaf, Node

Streams = frozenset[str]


@dataclass(frozen=True)
class Level:
    """One join on the way: tuples of one of its inputs are joined with the states of all others."""

    streams: Streams
    """Of the join."""
    others: tuple[Streams, ...]
    """As the plan has them; in which order they are probed is the worker's choice."""


@dataclass(frozen=True)
class Segment:
    """A stream's way through one task, up to a state that both plans have, or to the root."""

    streams: Streams
    """Of the state, or root, that it leads to."""
    old: tuple[Level, ...]
    new: tuple[Level, ...] = ()
    """Empty where both plans join the same inputs here, or where there is one plan only."""


def joins(root: Join) -> dict[Streams, Join]:
    """All joins of a plan by their streams, from the bottom up; the root is the last."""
    found: dict[Streams, Join] = {}

    def visit(node: Node) -> None:
        if isinstance(node, Join):
            for child in node.inputs:
                visit(child)
            found[frozenset(node.streams)] = node

    visit(root)
    return found


def inputs(node: Join) -> tuple[Streams, ...]:
    return tuple(frozenset(child.streams) for child in node.inputs)


def matched(old: Join, new: Join) -> set[Streams]:
    """Joins that both plans have, by their streams; the root among them."""
    return joins(old).keys() & joins(new).keys()


def is_same(old: Join, new: Join) -> bool:
    """Whether two plans differ in nothing but the order in which they are written."""
    return joins(old).keys() == joins(new).keys()


def way(root: Join, stream: str) -> list[Level]:
    """What a tuple of a stream goes through, from its leaf to the root."""
    levels: list[Level] = []
    node: Node = root
    while not isinstance(node, Leaf):
        own = next(child for child in node.inputs if stream in child.streams)
        others = tuple(frozenset(child.streams) for child in node.inputs if child is not own)
        levels.append(Level(frozenset(node.streams), others))
        node = own
    return levels[::-1]


def segments(old: Join, new: Join | None, stream: str) -> list[Segment]:
    """The way of a stream through one plan, or through two, task by task."""
    if new is None:
        return [Segment(level.streams, (level,)) for level in way(old, stream)]
    common = matched(old, new)
    found = []
    for mine, theirs in zip(_cut(way(old, stream), common), _cut(way(new, stream), common), strict=True):
        same = len(mine) == len(theirs) == 1 and set(mine[0].others) == set(theirs[0].others)
        found.append(Segment(mine[-1].streams, mine, () if same else theirs))
    return found


def task_of(streams: Streams, common: set[Streams]) -> Streams:
    """The task that a state which only one plan has belongs to: the smallest common set around it."""
    return min((each for each in common if streams < each), key=len)


def parents(root: Join) -> Mapping[Streams, Streams]:
    """Of each input of a join, the join."""
    return {child: streams for streams, node in joins(root).items() for child in inputs(node)}


def _cut(levels: list[Level], common: set[Streams]) -> list[tuple[Level, ...]]:
    pieces: list[tuple[Level, ...]] = []
    piece: list[Level] = []
    for level in levels:
        piece.append(level)
        if level.streams in common:
            pieces.append(tuple(piece))
            piece = []
    return pieces
