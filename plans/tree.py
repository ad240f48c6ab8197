"""A plan is data: a tree whose inner nodes join two or more inputs and, below the root, keep a state.

    Leaf("A")                                  a stream's own window
    Join((Leaf("A"), Leaf("B"), Leaf("C")))    mjoin: one multi-way operator, no intermediate state
    left_deep(["A", "B", "C"])                 bjtree ((A B) C): the state AB is kept

A state's id is the set of streams in it (PTLB/MSLB section 4.1: a state is identified by its tuples' schema). As text a
plan reads like the paper's: `(A B) C` is `((A B) C)`, an mjoin is `(A B C)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.errors import InvalidInput


@dataclass(frozen=True)
class Leaf:
    stream: str

    @property
    def streams(self) -> tuple[str, ...]:
        return (self.stream,)

    def __str__(self) -> str:
        return self.stream


@dataclass(frozen=True)
class Join:
    inputs: tuple[Node, ...]

    def __post_init__(self) -> None:
        if len(self.inputs) < 2:
            raise ValueError("a join has at least two inputs")

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(stream for node in self.inputs for stream in node.streams)

    def __str__(self) -> str:
        return f"({' '.join(map(str, self.inputs))})"


Node = Leaf | Join


@dataclass(frozen=True)
class Step:
    """Join what has come so far with the state of `other`; keep the outcome as a state of `keep`, if any."""

    other: tuple[str, ...]
    keep: tuple[str, ...] | None


def left_deep(streams: Sequence[str]) -> Join:
    node: Node = Leaf(streams[0])
    for stream in streams[1:]:
        node = Join((node, Leaf(stream)))
    assert isinstance(node, Join)
    return node


def mjoin(streams: Sequence[str]) -> Join:
    return Join(tuple(Leaf(stream) for stream in streams))


def states(root: Join) -> list[tuple[str, ...]]:
    """Ids of all states, leaves first, every state after those it is computed from. The root keeps none."""
    return [node.streams for node in _post_order(root) if node is not root]


def inner_states(root: Join) -> list[Join]:
    """The joins below the root in bottom-up order: what a rebuild has to recompute."""
    return [node for node in _post_order(root) if isinstance(node, Join) and node is not root]


def path(root: Join, stream: str) -> list[Step]:
    """What a new tuple of `stream` goes through on its way from its leaf to the root."""
    return _path(root, stream, is_root=True)


def _path(node: Node, stream: str, *, is_root: bool) -> list[Step]:
    if isinstance(node, Leaf):
        return []
    own = next(child for child in node.inputs if stream in child.streams)
    steps = _path(own, stream, is_root=False)
    others = [child for child in node.inputs if child is not own]
    for number, other in enumerate(others):
        last = number == len(others) - 1
        steps.append(Step(other.streams, node.streams if last and not is_root else None))
    return steps


def _post_order(node: Node) -> Iterator[Node]:
    if isinstance(node, Join):
        for child in node.inputs:
            yield from _post_order(child)
    yield node


def parse_plan(text: str, streams: Sequence[str], field: str = "plan") -> Join:
    """The plan in `text`: `left-deep`, `mjoin`, or a tree such as `((B C) A)` over exactly the query's streams."""
    if text == "left-deep":
        return left_deep(streams)
    if text == "mjoin":
        return mjoin(streams)
    node = _parse_tree(text, field)
    if sorted(node.streams) != sorted(streams):
        raise InvalidInput(
            field, text, f"joins {', '.join(node.streams)}", f"Name each stream once: {', '.join(streams)}."
        )
    return node


def _parse_tree(text: str, field: str) -> Join:
    tokens = re.findall(r"[()]|[^\s()]+", text)
    stack: list[list[Node]] = [[]]
    bad = InvalidInput(
        field, text, "is not a plan", "Write left-deep, mjoin, or a tree in parentheses such as ((A B) C)."
    )
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            children = stack.pop()
            if not stack or len(children) < 2:
                raise bad
            stack[-1].append(Join(tuple(children)))
        else:
            stack[-1].append(Leaf(token))
    if len(stack) != 1 or not stack[0]:
        raise bad
    if len(stack[0]) > 1:
        return Join(tuple(stack[0]))
    root = stack[0][0]
    if isinstance(root, Leaf):
        raise bad
    return root
